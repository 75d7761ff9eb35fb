"""A virtual machine with RDMA devices, to run commands in: python -m tests.rdma.vm -- CMD...

QEMU boots Debian's kernel without acceleration. The machine's root is this one's, read-only under a layer in memory:
the same Python, packages and working tree, and whatever a command writes is gone afterwards, except in the exchange
folder, which both sides share. It has no network card, and two soft-RoCE devices on a cable of its own (guest/init.sh).
"""

import argparse
import hashlib
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = (
    *("qemu-system-x86", "busybox-static", "cpio", "kmod"),
    *("rdma-core", "ibverbs-providers", "ibverbs-utils", "python3-pyverbs", "iproute2"),
)
PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "depmod", "rdma", "ibv_rc_pingpong", "tc")
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
EARLY_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""Those that it takes to reach the root; all others come from there."""
UNUSED = ("drivers/gpu", "drivers/media", "drivers/net/ethernet", "drivers/net/wireless", "sound")
INSTALL_S = 300
MEMORY_MIB = 3072


class NoMachine(Exception):
    """The machine can't be made here; the message says why."""


@dataclass(frozen=True)
class Machine:
    """What QEMU needs to boot, in a folder that may be kept between runs."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path | None = None) -> "Machine":
        """Installs and unpacks what is not there yet: a minute on a bare machine, else nothing. Raises NoMachine."""
        install()
        recipe = b"".join(path.read_bytes() for path in (Path(__file__), HERE / "guest" / "early.sh"))
        name = f"hostless-vm-{os.getuid()}-{hashlib.sha256(recipe).hexdigest()[:12]}"
        folder = folder or Path(tempfile.gettempdir()) / name
        if not (folder / "initrd").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as unfinished:
                build(Path(unfinished))
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(unfinished, folder, symlinks=True)
        return cls(folder)

    def run(self, command: list[str], exchange: Path, limit_s: float, environ: dict[str, str] | None = None) -> int:
        """Boots, runs `command` in this folder, powers off; answers the command's exit code, 124 when it was late.

        The command finds the exchange folder's path in HOSTLESS_EXCHANGE; what it prints goes to stdout.
        """
        exports = {
            "PATH": os.environ["PATH"],
            "HOME": str(Path.home()),
            "HOSTLESS_EXCHANGE": str(exchange),
            **(environ or {}),
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
        (exchange / "command").write_text(
            "\n".join([*lines, f"cd {shlex.quote(os.getcwd())}", shlex.join(command), ""])
        )
        code = exchange / "exit-code"
        code.unlink(missing_ok=True)
        try:
            subprocess.run(self._qemu(exchange), stdin=subprocess.DEVNULL, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return 124
        return int(code.read_text()) if code.exists() else 124

    def _qemu(self, exchange: Path) -> list[str]:
        # Without erms and fsrm the kernel copies by words, as memory on a bus is read: a soft-RoCE device that copied
        # by bytes would tear the words of the ring (docs/ring.md).
        words = "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init"
        words += f" hostless.here={HERE} hostless.modules={self.folder / 'modules'} hostless.exchange={exchange}"
        return [
            *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"),
            *("-m", str(MEMORY_MIB), "-smp", "2", "-nodefaults", "-no-reboot", "-display", "none"),
            *("-serial", "stdio", "-monitor", "none"),
            *("-kernel", str(self.folder / "vmlinux"), "-initrd", str(self.folder / "initrd"), "-append", words),
            *_share("root", Path("/"), ",readonly=on"),
            *_share("exchange", exchange),
        ]


def _share(tag: str, path: Path, more: str = "") -> tuple[str, ...]:
    backend = f"local,id={tag},path={path},security_model=none,multidevs=remap{more}"
    return ("-fsdev", backend, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}")


def install() -> None:
    """Debian's packages, where something is missing. Raises NoMachine."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not missing and PYVERBS.exists():
        return
    if os.getuid() or shutil.which("apt-get") is None:
        raise NoMachine(
            f"{', '.join(missing) or 'pyverbs'} missing; as root on Debian: apt install {' '.join(PACKAGES)}"
        )
    _do("apt-get", "-qq", "update")
    _do("apt-get", "-qq", "install", "-y", "--no-install-recommends", *PACKAGES)


def build(folder: Path) -> None:
    """Kernel, modules and the first file system, in `folder`. Raises NoMachine."""
    kernel = _kernel_package()
    _do("apt-get", "-qq", "download", kernel, cwd=folder)
    (archive,) = folder.glob(f"{kernel}_*.deb")
    skip = [f"--exclude=*/{name}" for name in UNUSED]
    with subprocess.Popen(["dpkg", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as unpacking:
        tar = ["tar", "-x", "--wildcards", *skip, "./boot", "./lib/modules"]
        subprocess.run(tar, cwd=folder, stdin=unpacking.stdout, check=True, timeout=INSTALL_S)
    archive.unlink()
    (image,) = (folder / "boot").glob("vmlinuz-*")
    (folder / "vmlinux").write_bytes(_uncompressed(image.read_bytes()))
    shutil.rmtree(folder / "boot")
    (folder / "lib").rename(folder / "modules")
    # modprobe looks under lib/modules of the folder that it is given.
    (folder / "modules" / "lib").symlink_to(".")
    version = next((folder / "modules" / "modules").iterdir()).name
    _do("depmod", "-b", str(folder / "modules"), version)
    _initrd(folder, version)


def _initrd(folder: Path, version: str) -> None:
    root = folder / "root"
    for name in ("bin", "modules", "proc", "sys", "dev", "new", "lower", "upper"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", root / "bin" / "busybox")
    shutil.copy(HERE / "guest" / "early.sh", root / "init")
    (root / "init").chmod(0o755)
    order: dict[str, None] = {}
    for module in EARLY_MODULES:
        shown = _do("modprobe", "-n", "-d", str(folder / "modules"), "-S", version, "--show-depends", module)
        order |= {line.split()[1]: None for line in shown.splitlines() if line.startswith("insmod ")}
    for path in order:
        shutil.copy(path, root / "modules")
    (root / "modules" / "order").write_text("".join(f"{Path(path).name}\n" for path in order))
    names = subprocess.run(["find", "."], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, stdout=subprocess.PIPE, check=True
    )
    (folder / "initrd").write_bytes(packed.stdout)
    shutil.rmtree(root)


def _kernel_package() -> str:
    for line in _do("apt-cache", "depends", "linux-image-amd64").splitlines():
        word, _, name = line.strip().partition(": ")
        if word == "Depends" and name.startswith("linux-image-"):
            return name
    raise NoMachine("apt knows no linux-image-amd64; is this Debian on x86-64?")


def _uncompressed(image: bytes) -> bytes:
    """The ELF file in a bzImage: QEMU boots that sooner than it would decompress it."""
    at = -1
    while (at := image.find(b"\xfd7zXZ\0", at + 1)) >= 0:
        try:
            kernel = lzma.LZMADecompressor().decompress(image[at:])
        except lzma.LZMAError:
            continue
        if kernel.startswith(b"\x7fELF"):
            return kernel
    raise NoMachine("the kernel's image holds no xz-compressed ELF file")


def _do(*command: str, cwd: Path | None = None) -> str:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoMachine(f"{shlex.join(command)}: {error}") from error
    if done.returncode:
        raise NoMachine(f"{shlex.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.vm", description="Runs a command on two RDMA devices.")
    parser.add_argument("--limit-s", type=float, default=600.0, help="the machine is killed after so long")
    parser.add_argument("--exchange", type=Path, help="folder whose files stay; default: none")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    try:
        machine = Machine.prepare()
    except NoMachine as reason:
        print(f"no virtual machine: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as exchange:
        return machine.run(asked.command, (asked.exchange or Path(exchange)).resolve(), asked.limit_s)


if __name__ == "__main__":
    sys.exit(main())
