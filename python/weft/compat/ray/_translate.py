"""Options and arguments under Ray's names, translated to weft's. What is accepted and ignored stands in the tables."""

from __future__ import annotations

from weft import _options
from weft._options import nearest

__all__ = ["init_arguments", "options"]

_RENAMED_OPTIONS = {"num_return_vals": "num_returns", "max_reconstructions": "max_restarts"}

# Accepted without effect, because on weft there is nothing that they could change.
_IGNORED_OPTIONS = {
    "_metadata",  # of Ray's own libraries
    "checkpoint_interval",  # 0.5: of actors that were checkpointed
    "enable_task_events",
    "max_task_events",
}
_KNOWN_OPTIONS = {*_RENAMED_OPTIONS, *_options._NOT_YET}.union(*_options._ALL_CHECKS.values())
_FOR_EVER = 2**31 - 1  # Ray writes -1


def options(given: dict) -> dict:
    """Options of a remote function, actor class or method. The values are weft's to check."""
    translated: dict = {}
    for name, value in given.items():
        if name in _IGNORED_OPTIONS:
            continue
        if name not in _KNOWN_OPTIONS:
            raise ValueError(f"there is no option {name!r}{nearest(name, _KNOWN_OPTIONS)}")  # a ValueError, as in Ray
        new_name = _RENAMED_OPTIONS.get(name, name)
        if new_name in translated or (new_name != name and new_name in given):
            raise TypeError(f"{name!r} and {new_name!r} are the same option; give one of them")
        if name == "max_retries" and value == -1:
            value = _FOR_EVER
        translated[new_name] = value
    selector = getattr(translated.get("scheduling_strategy"), "label_selector", None)
    if selector is not None:  # NodeLabelSchedulingStrategy
        del translated["scheduling_strategy"]
        translated["label_selector"] = {**selector, **(translated.get("label_selector") or {})}
    return translated


# ---- ray.init -------------------------------------------------------------------------------------------------------

_INIT = (
    "address",
    "num_cpus",
    "num_gpus",
    "resources",
    "labels",
    "object_store_memory",
    "local_mode",
    "ignore_reinit_error",
    "log_to_driver",
    "logging_level",
    "namespace",
    "runtime_env",
)
_RENAMED_INIT = {"redis_address": "address"}

# Accepted without effect; the reason beside each group.
_IGNORED_INIT = {
    # There is no dashboard yet.
    "dashboard_host",
    "dashboard_port",
    "include_dashboard",
    "include_webui",
    # Output goes to the driver (log_to_driver), and the loggers are the program's own.
    "configure_logging",
    "logging_config",
    "logging_format",
    "redirect_output",
    "redirect_worker_output",
    # There is no Redis in a private session, and no ports, sockets or folders to choose.
    "_node_ip_address",
    "_node_name",
    "_plasma_directory",
    "_redis_max_memory",
    "_redis_password",
    "_redis_username",
    "_temp_dir",
    "huge_pages",
    "node_ip_address",
    "num_redis_shards",
    "plasma_directory",
    "plasma_store_socket_name",
    "raylet_socket_name",
    "redis_max_clients",
    "redis_max_memory",
    "redis_password",
    "temp_dir",
    # Switches of Ray's own insides.
    "_driver_object_store_memory",
    "_enable_object_reconstruction",
    "_internal_config",
    "_memory",
    "_metrics_export_port",
    "_object_spilling_directory",
    "_skip_env_hook",
    "_system_config",
    "_tracing_startup_hook",
    "cgroup_path",
    "driver_id",
    "enable_resource_isolation",
    "job_config",
    "num_workers",
    "object_id_seed",
    "proxy_server_url",
    "system_reserved_cpu",
    "system_reserved_memory",
    "use_raylet",
}


def init_arguments(given: dict) -> dict:
    """Arguments for weft.init. Unknown ones are refused."""
    translated: dict = {}
    for name, value in given.items():
        if name in _IGNORED_INIT:
            continue
        new_name = _RENAMED_INIT.get(name, name)
        if name == "driver_mode":  # 0.6: a number for "in this process", now a flag
            new_name, value = "local_mode", value == LOCAL_MODE
        if new_name not in _INIT:
            raise TypeError(
                f"ray.init() has no argument {name!r}{nearest(name, {*_INIT, *_RENAMED_INIT, *_IGNORED_INIT})}"
            )
        if value is not None:
            if new_name in translated:
                raise TypeError(f"{name!r} and {new_name!r} are the same argument of ray.init(); give one of them")
            translated[new_name] = value
    return translated


SCRIPT_MODE, WORKER_MODE, LOCAL_MODE, SILENT_MODE = 0, 1, 2, 3
