#!/usr/bin/env python3
"""Runs unchanged client programs of the XenAPI against a `ringwayd` with simulated VMs, or with
real storage where they send the content of disks.

`go-sdk` is the exception: it makes the requests of XenServer's SDK for Go, which no registry has.

`run.py [--record DIR] RINGWAYD [CLIENT...]`. Each client is installed with its own package manager
into .cache/clients. With --record, the requests of each client are written to DIR/CLIENT.jsonl.
Exits with 1 if a client fails, or could not be installed.
"""

import argparse
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile

import recorder

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache/clients"
# Longest time until the daemon serves, in seconds.
START_DEADLINE = 60
# Longest time of a client, in seconds.
CLIENT_DEADLINE = 300


def python(name):
    """Returns the programs of a virtual environment with a client's packages."""
    programs = CACHE / name / "bin"
    call([sys.executable, "-m", "venv", CACHE / name])
    call([programs / "pip", "install", "--quiet", "-r", HERE / name / "requirements.txt"])
    return programs


def python_client():
    return [python("python") / "python", HERE / "python/client.py"]


def ansible_client():
    programs = python("ansible")
    inventory = ["-i", "localhost,", "-e", f"ansible_python_interpreter={programs}/python"]
    return [programs / "ansible-playbook", *inventory, HERE / "ansible/play.yml"]


def node(program):
    copied("node")
    call(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=CACHE / "node")
    return ["node", CACHE / "node" / program]


def node_client():
    return node("client.mjs")


def node_disks():
    return node("disks.mjs")


def go_client():
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "go-client"
    call(["go", "build", "-o", program, "."], cwd=HERE / "go")
    return [program]


def java_client():
    target = CACHE / "java"
    build = ["-q", "-f", HERE / "java/pom.xml", f"-Dclients.target={target}", "compile"]
    libraries = ["dependency:copy-dependencies", f"-DoutputDirectory={target}/lib"]
    call(["mvn", *build, *libraries])
    return ["java", "-cp", f"{target}/classes:{target}/lib/*", "Client"]


def go_sdk_requests():
    return [sys.executable, HERE / "go_sdk/client.py"]


# How each client is installed, and the tools that this needs.
CLIENTS = {
    "python": (python_client, []),
    "node": (node_client, ["node", "npm"]),
    "node-disks": (node_disks, ["node", "npm"]),
    "ansible": (ansible_client, []),
    "java": (java_client, ["java", "mvn"]),
    "go": (go_client, ["go"]),
    "go-sdk": (go_sdk_requests, []),
}
# Clients of a daemon with real storage.
REAL = {"node-disks"}


def call(words, **options):
    """Runs an installer."""
    subprocess.run([str(word) for word in words], check=True, **options)


def copied(name):
    """Copies a client to where its packages are installed."""
    shutil.copytree(HERE / name, CACHE / name, dirs_exist_ok=True)


def started(ringwayd, directory, hypervisor):
    """Starts a daemon. Returns its process and its port without TLS."""
    words = [ringwayd, "--hypervisor", hypervisor, "--slices", "off", "--calibrate", "off"]
    words += ["--state", directory / "state", "--listen", "127.0.0.1:0,plain"]
    with open(directory / "log", "w", encoding="utf-8") as log:
        daemon = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    ready, _, _ = select.select([daemon.stdout], [], [], START_DEADLINE)
    line = daemon.stdout.readline() if ready else ""
    port = re.search(r"127\.0\.0\.1:(\d+),plain", line)
    if not port:
        daemon.kill()
        sys.exit(f"{ringwayd} does not serve: {line}{(directory / 'log').read_text()}")
    return daemon, int(port.group(1))


def end_datapaths(directory):
    """Ends each `ringway-io` below a directory: they outlive their daemon."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            # First, so that the words are those of this process.
            process = os.pidfd_open(int(entry.name))
        except ProcessLookupError:
            continue
        try:
            if f"{directory}/".encode() in (entry / "cmdline").read_bytes():
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [])
        except (FileNotFoundError, ProcessLookupError):
            pass
        finally:
            os.close(process)


def run(name, command, ringwayd, record):
    """Runs a client against a daemon of its own. Returns whether it succeeded."""
    with tempfile.TemporaryDirectory(prefix="rw-") as directory:
        directory = pathlib.Path(directory)
        daemon, port = started(ringwayd, directory, "qemu" if name in REAL else "simulator")
        try:
            password = (directory / "state/password").read_text().splitlines()[1]
            proxy = recorder.Recorder("127.0.0.1", port, "root", password)
            environment = os.environ | {"RINGWAY_URL": proxy.url, "RINGWAY_PASSWORD": password}
            words = [str(word) for word in command]
            ended = subprocess.run(words, env=environment, timeout=CLIENT_DEADLINE, check=False)
            if ended.returncode == 0 and record:
                record.mkdir(parents=True, exist_ok=True)
                proxy.write(record / f"{name}.jsonl")
            return ended.returncode == 0
        finally:
            daemon.terminate()
            daemon.wait()
            end_datapaths(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=pathlib.Path, metavar="DIR")
    parser.add_argument("ringwayd", type=pathlib.Path)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=" ".join(CLIENTS))
    options = parser.parse_args()
    wanted = options.clients or list(CLIENTS)
    unknown = [name for name in wanted if name not in CLIENTS]
    if unknown:
        parser.error(f"no client {' '.join(unknown)}: there are {' '.join(CLIENTS)}")
    results = {}
    for name in wanted:
        install, tools = CLIENTS[name]
        missing = [tool for tool in tools if not shutil.which(tool)]
        if missing:
            results[name] = f"not run: install {' and '.join(missing)}"
            continue
        try:
            command = install()
        except (OSError, subprocess.CalledProcessError) as error:
            results[name] = f"not run: cannot be installed: {error}"
            continue
        print(f"== {name}", flush=True)
        try:
            works = run(name, command, options.ringwayd, options.record)
        except subprocess.TimeoutExpired:
            works = False
        results[name] = "works" if works else "FAILED"
    for name, result in results.items():
        print(f"{name:10} {result}")
    sys.exit(0 if set(results.values()) == {"works"} else 1)


if __name__ == "__main__":
    main()
