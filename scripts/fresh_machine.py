#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
fresh_machine.py - what a newcomer does, on a machine that has nothing: a bare Debian 12 with git and python3, a fresh clone, try, then test.

    debootstrap (the package source that apt uses here) -> FOLDER/machine -> git clone -> ./quire try -- perl ... -> nohup ./quire test &

As root; about 5 GB and, on two idle cores, a quarter of an hour.  The machine is a chroot: it has this kernel, and what this machine's apt, pip and
certificates are told (their settings are copied).  Exit: 0 both passed, 1 one failed, 3 it cannot be made here.
Not here: the tests (./quire test), other releases than Debian 12 (old_machine.py).
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODENAME, PACKAGES = "bookworm", "git,python3,ca-certificates"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SETTINGS = ("PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")
COPIED = ("/etc/hosts", "/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
MOUNTS = ("/proc", "/sys", "/dev")
PROGRAM = """perl -e '$x{$_} = "a$_" for 1..200000; print scalar(keys %x), "\\n"'"""
# In the background of a shell without job control: SIGINT and SIGQUIT are ignored there.
COMMANDS = (("try", f"./quire try -- {PROGRAM}"), ("test", "nohup ./quire test >test.txt 2>&1 & wait $!; status=$?; cat test.txt; exit $status"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--keep", action="store_true", help="leave the machine's folder where it is")
    parser.add_argument("--only", choices=[name for name, _ in COMMANDS], help="this step alone")
    args = parser.parse_args()
    return carry_out("fresh machine", args.keep, [step for step in COMMANDS if args.only in (None, step[0])])


def carry_out(name, keep, steps, codename=CODENAME, packages=PACKAGES):
    """Makes a machine, carries out each (step, command) there, and says which failed; the exit status."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        print(f"a {name} needs root and debootstrap: apt-get install -y debootstrap", file=sys.stderr)
        return 3
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-machine-", dir="/var/tmp"))
    machine = folder / "machine"
    try:
        if not make(machine, codename, packages):
            return 3
        failed = [step for step, command in steps if run(machine, command) != 0]
        print(f"{name}: {'failed: ' + ', '.join(failed) if failed else 'passed'}")
        return 1 if failed else 0
    finally:
        give_back(folder, machine, keep)


def give_back(folder, machine, keep):
    """Everything that was mounted there goes, and the folder with it unless it is kept."""
    for place in reversed(MOUNTS):
        subprocess.run(["umount", "-l", f"{machine}{place}"], capture_output=True)
    if not keep and not any(os.path.ismount(f"{machine}{place}") for place in MOUNTS):
        shutil.rmtree(folder)


def make(machine, codename, packages):
    """A bare system with a clone of this checkout's HEAD in it; False when it cannot be made."""
    bootstrap = ["debootstrap", "--variant=minbase", f"--include={packages}", codename, str(machine), *package_source()]
    if subprocess.run(bootstrap, stdout=sys.stderr).returncode != 0:
        return False
    for name in COPIED:
        if os.path.exists(name):
            shutil.copyfile(name, f"{machine}{name}")
    for place in MOUNTS:
        kind = ["-t", "proc", "proc"] if place == "/proc" else ["--rbind", place]
        subprocess.run(["mount", *kind, f"{machine}{place}"], check=True)
        subprocess.run(["mount", "--make-rprivate", f"{machine}{place}"], check=True)
    clone = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), f"{machine}/srv/quire"]
    return subprocess.run(clone).returncode == 0


def package_source():
    """[the address that this machine's apt has for Debian's own packages]; []: debootstrap's."""
    wanted = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {CODENAME}", "Component: main", "Label: Debian"]
    found = subprocess.run(wanted, capture_output=True, text=True).stdout.split()
    return found[:1]


def run(machine, command):
    """One step there, in an environment of its own; its status."""
    print(f"$ {command}", flush=True)
    kept = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    environment = {"HOME": "/srv", "PATH": PATH, "TERM": "dumb", **kept}
    return subprocess.run(["chroot", machine, "sh", "-c", f"cd /srv/quire || exit 1; {command}"], env=environment, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
