"""ray.services of 2018."""

from __future__ import annotations

__all__ = ["get_node_ip_address"]


def get_node_ip_address(address: str = "8.8.8.8:53") -> str:
    """The address of this machine, by which others reach it; 127.0.0.1 if it has no network. Nothing is sent."""
    import socket

    host, _, port = address.partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port or 53)))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
