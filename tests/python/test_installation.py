"""weft for users without its source tree: `cmake --install` and the wheel, used from outside.

tests/cpp/outside is the user's project. It is built and run where no other weft is in sight.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest
import weft

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "release"
OUTSIDE = ROOT / "tests" / "cpp" / "outside"
VERSION = (ROOT / "VERSION").read_text().strip()
LIBRARY = "libweft.so." + ".".join(VERSION.split(".")[:2])
STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Werror"]

pytestmark = [
    pytest.mark.timeout(300),  # compilers run here
    pytest.mark.skipif(not (BUILD / "build.ninja").exists(), reason="needs the folder that `make build` fills"),
]


def names_the_folder(content: bytes) -> bool:
    """Whether it has a path of this tree; of a folder in it, because the tree itself may lie in /weft."""
    return any(f"{ROOT}/{folder}".encode() in content for folder in ("build/", "src/", "include/", ".venv/"))


def clean_environment() -> dict[str, str]:
    """Without anything that leads to weft or to the environment of these tests."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WEFT_", "CMAKE_", "PYTHON")) and name not in ("LD_LIBRARY_PATH", "VIRTUAL_ENV")
    }
    folders = [folder for folder in environment["PATH"].split(os.pathsep) if not (Path(folder) / "weft").exists()]
    environment["PATH"] = os.pathsep.join(folders)
    return environment


def run(*command: object, **options) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(),
        timeout=240,
        **options,
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"
    return result.stdout


def need(compiler: str) -> str:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    return compiler


def build_outside(folder: Path, compiler: str, *options: str) -> Path:
    source = folder / "source"
    shutil.copytree(OUTSIDE, source)
    run(
        "cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", *options
    )  # fmt: skip
    run("cmake", "--build", folder / "build")
    return folder / "build" / "hello"


def check_hello(hello: Path, program: Path) -> None:
    output = run(hello, cwd="/").replace("{anonymous}", "(anonymous namespace)")  # GCC's and Clang's words
    assert output.splitlines() == [
        f"version {VERSION}",
        "hello outside",
        "step 2, of the library 11",
        "triple 3, of the library 6",
        "sum 50000",
        "caught std::out_of_range of (anonymous namespace)::fail: no 7",
        f"started by {program.resolve()}",
    ]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def test_installation_has_what_cpp_needs_and_no_more(prefix):
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    sources = {
        f"include/weft/{path.relative_to(ROOT / 'include/weft')}" for path in (ROOT / "include/weft").rglob("*.h")
    }
    cmake = {"Config", "ConfigVersion", "Targets"}
    expected = sources | {f"lib/cmake/weft/weft{name}.cmake" for name in cmake}
    expected |= {"lib/cmake/weft/weftTargets-release.cmake", "lib/cmake/weft/weft_add_task_library.cmake"}
    expected |= {"include/weft/version.h", "bin/weft", "lib/libweft.so", f"lib/{LIBRARY}"}
    assert files == expected
    for path in prefix.rglob("*"):
        if path.suffix in (".cmake", ".h"):
            assert not names_the_folder(path.read_bytes()), f"{path} names the folder weft was built in"
    for name in ("bin/weft", f"lib/{LIBRARY}"):
        assert not names_the_folder((prefix / name).read_bytes()), f"{name} names the folder weft was built in"


@pytest.mark.parametrize("component", [[], ["--component", "python"]])
def test_a_copy_of_the_build_folder_installs_nothing_and_leaves_the_original_alone(tmp_path, component):
    """CMake's scripts name the folder in which weft was built, wherever they are run."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for script in BUILD.rglob("cmake_install.cmake"):
        (copy / script.relative_to(BUILD)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(script, copy / script.relative_to(BUILD))

    def written() -> dict:
        return {path: path.stat().st_mtime_ns for path in BUILD.glob("install_*.txt")}

    before = written()
    command = ["cmake", "--install", copy, "--prefix", tmp_path / "prefix", *component]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0 and f"weft was built in {BUILD.resolve()}" in said and "is a copy of that" in said, said
    assert written() == before
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize("compiler, options", [("g++", ""), ("clang++", ""), ("g++", "-fvisibility=hidden -O2")])
def test_project_outside(prefix, tmp_path, compiler, options):
    hello = build_outside(tmp_path, need(compiler), f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_FLAGS={options}")
    check_hello(hello, prefix / "bin" / "weft")


def test_project_of_the_document(prefix, tmp_path):
    text = (ROOT / "docs" / "user" / "install.md").read_text()
    for name, language in (("hello.cc", "cpp"), ("CMakeLists.txt", "cmake")):
        (tmp_path / name).write_text(re.search(rf"```{language}\n(.*?)```", text, re.S)[1])
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build" / "hello") == f"49 with weft {VERSION}\n"


def test_library_that_uses_weft_inside(prefix, tmp_path):
    """Its workers are the installed `weft worker` with the library; the program that loads it knows nothing of weft."""
    for name in ("inner.cc", "outer.cc"):
        shutil.copy(ROOT / "tests" / "cpp" / "library" / name, tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(inside LANGUAGES CXX)\nfind_package(weft REQUIRED)\n"
        "add_compile_options(-Wall -Wextra -Werror)\nset(CMAKE_CXX_EXTENSIONS OFF)\n"
        "weft_add_task_library(inner inner.cc)\n"
        "add_executable(outer outer.cc)\ntarget_link_libraries(outer PRIVATE ${CMAKE_DL_LIBS})\n"
    )
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    assert run(build / "outer", build / "libinner.so", cwd="/") == f"sum {3 * sum(range(100))}\n"
    # Also where it was moved to, by another name.
    moved = tmp_path / "elsewhere" / "plugin.so"
    moved.parent.mkdir()
    os.rename(build / "libinner.so", moved)
    assert run(build / "outer", moved, cwd="/") == f"sum {3 * sum(range(100))}\n"


def test_another_minor_version_is_not_accepted(prefix, tmp_path):
    major, minor, _ = VERSION.split(".")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(x LANGUAGES NONE)\n"
        f"find_package(weft {major}.{int(minor) + 1} QUIET)\n"
        "if(weft_FOUND)\n  message(FATAL_ERROR found)\nendif()\n"
        f"find_package(weft {major}.{minor} REQUIRED)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_headers_bring_nobody_elses(prefix, tmp_path, compiler):
    include = prefix / "include"
    source = tmp_path / "all.cc"
    headers = sorted(path.name for path in (include / "weft").glob("*.h"))  # weft.h, and what is asked for beside it
    source.write_text("".join(f"#include <weft/{name}>\n" for name in headers))
    run(need(compiler), *STRICT, "-fsyntax-only", f"-I{include}", source)
    rule = run(compiler, *STRICT, "-M", f"-I{include}", source).replace("\\\n", " ")
    dependencies = {Path(path).resolve() for path in rule.split(":", 1)[1].split()} - {source.resolve()}
    assert set(include.resolve().rglob("*.h")) <= dependencies
    # The C++ library, the compiler's own headers, and those of the C library and the kernel.
    system = re.compile(
        r"/usr/(lib/(gcc|llvm)|include/(c\+\+|[a-z0-9_]+-linux-gnu|linux|asm-generic)/|include/[a-z0-9_-]+\.h$)"
    )
    assert [path for path in dependencies if "weft" not in path.parts and not system.match(str(path))] == []


def test_hello_compiles_quickly(prefix, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("g++", *STRICT, f"-I{prefix / 'include'}", "-c", OUTSIDE / "hello.cc", "-o", tmp_path / "hello.o")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{seconds:.1f} s of CPU time")
    assert seconds < 8  # the goal is 4 on an idle machine; a busy one may need twice that


def test_program_knows_its_installation(prefix):
    assert run(prefix / "bin" / "weft", "--cmake-dir") == f"{prefix.resolve()}/lib/cmake/weft\n"
    assert run(prefix / "bin" / "weft", "--include-dir") == f"{prefix.resolve()}/include\n"


def test_library_exports_weft_alone(prefix):
    names = run("nm", "--dynamic", "--defined-only", "--format=just-symbols", prefix / "lib" / LIBRARY).split()
    assert "_ZTIN4weft9WeftErrorE" in names  # what is thrown in one library is caught in another
    assert [name for name in names if not re.match(r"_Z(T.|GV|GVZ|Z)?NK?4weft", name)] == []


def check_thread_local_variables(library: Path, extension: Path) -> None:
    """A fixed offset (the initial-exec model) must lie in the static block, whose rest is small once a program runs.
    Our few bytes fit; those of libstdc++ do not if torch, say, has loaded it first: then weft could not be imported."""
    in_static_block = 0
    for file in (library, extension):
        relocations = run("readelf", "--relocs", "--wide", file).splitlines()
        fixed = [line.split() for line in relocations if "TPOFF" in line or "TPREL" in line]
        names = [fields[4] for fields in fixed if len(fields) > 4]
        assert [name for name in names if not name.startswith("_ZN4weft")] == [], file
        assert fixed or file != library  # else this looks at the wrong thing
        segments = run("readelf", "--segments", "--wide", file).splitlines()
        sizes = [int(line.split()[5], 16) for line in segments if line.lstrip().startswith("TLS ")]
        assert sum(sizes) <= 512, f"{file}: bytes of each thread"
        in_static_block += sum(sizes) if fixed else 0  # else they lie elsewhere, and are made when they are used
    assert in_static_block <= 64


def test_thread_local_variables_of_others_are_not_reached_by_a_fixed_offset(prefix):
    (extension,) = Path(weft.__file__).parent.glob("_core*.so")
    check_thread_local_variables(prefix / "lib" / LIBRARY, extension)


def repack(package: str, folder: Path) -> None:
    """A wheel of an installed package, so that nothing has to be fetched."""
    found = importlib.metadata.distribution(package)
    with zipfile.ZipFile(folder / f"{package}-{found.version}-py3-none-any.whl", "w") as archive:
        for file in found.files:
            if file.suffix != ".pyc" and ".." not in file.parts:
                archive.write(file.locate(), file)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, ROOT / "scripts" / "wheel.py", BUILD, folder)
    (found,) = folder.glob("weft-*.whl")
    return found


@pytest.fixture(scope="module")
def empty_environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment that has weft from the wheel, and what it needs, and nothing else."""
    packages = tmp_path_factory.mktemp("packages")
    repack("cloudpickle", packages)
    folder = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--no-index", "--find-links", packages, wheel)
    return folder


def test_wheel_is_small_and_runs_on_many_systems(wheel):
    assert re.fullmatch(rf"weft-{re.escape(VERSION)}-cp\d+-cp\d+-manylinux_2_\d+_\w+\.whl", wheel.name)
    assert wheel.stat().st_size <= 8_000_000
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel)
    assert f'"{wheel.stem.split("-")[-1]}"' in shown
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if ".so" in Path(name).name]
        assert sorted(Path(name).parent.as_posix() for name in libraries) == ["weft", "weft/_cpp/lib"]
        assert {"weft/compat/caffe/caffe_shim.h", "weft/compat/caffe/caffe_shim.cc"} <= set(names)
        for name in names:
            assert not names_the_folder(archive.read(name)), f"{name} names the folder weft was built in"


def test_thread_local_variables_of_the_libraries_in_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (extension,) = (tmp_path / "weft").glob("_core*.so")
    check_thread_local_variables(tmp_path / "weft" / "_cpp" / "lib" / LIBRARY, extension)


def test_wheel_in_an_empty_environment(empty_environment, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import weft

            weft.init(num_cpus=2)
            double = weft.remote(lambda x: 2 * x)
            print(weft.__version__, weft.get([double.remote(x) for x in range(3)]), weft.__file__)
            weft.shutdown()
            """
        )
    )
    version, result, file = re.fullmatch(
        r"(\S+) (\[.*\]) (\S+)\n", run(empty_environment / "bin" / "python", program, cwd=tmp_path)
    ).groups()
    assert (version, result) == (VERSION, "[0, 2, 4]")
    assert empty_environment in Path(file).parents


IMPORTS = {"pandas": "import pandas, pyarrow, pyarrow.parquet", "sklearn": "import sklearn.linear_model"}


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("libraries", IMPORTS)
@pytest.mark.parametrize("origin", ["tree", "wheel"])
def test_import_order(origin, libraries, order, empty_environment, tmp_path):
    """Heavy libraries take what is left of the static block of thread-local variables; weft works all the same."""
    python = Path(sys.executable)
    folders = ""
    if origin == "wheel":
        python = empty_environment / "bin" / "python"
        folders = f"import sys; sys.path += {[sysconfig.get_path('platlib')]!r}"  # behind its own
    lines = [IMPORTS[libraries], "import weft"][:: 1 if order == "before" else -1]
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            {folders}
            {lines[0]}
            {lines[1]}

            @weft.remote
            def worker(x):
                {IMPORTS[libraries]}
                return x * len(sys.modules[{libraries!r}].__name__)

            import sys
            weft.init(num_cpus=1)
            print(weft.get(worker.remote(weft.put(2))), weft.__file__)
            """
        )
    )
    result, file = run(python, program, cwd=tmp_path).split()
    assert int(result) == 2 * len(libraries)
    assert (empty_environment in Path(file).parents) == (origin == "wheel")


def test_project_outside_with_the_wheel(empty_environment, tmp_path):
    command = empty_environment / "bin" / "weft"
    folder = run(command, "--cmake-dir").strip()
    assert empty_environment.resolve() in Path(folder).parents
    assert (Path(run(command, "--include-dir").strip()) / "weft" / "weft.h").exists()
    hello = build_outside(tmp_path, "g++", f"-Dweft_DIR={folder}")
    (program,) = empty_environment.rglob("weft/_bin/weft")
    check_hello(hello, program)
