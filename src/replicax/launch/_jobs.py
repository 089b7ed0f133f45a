"""`replicax slurm` and `replicax k8s`: the batch script or the manifests of a program.

Workers that train together are a JobSet; parameter servers are a RayJob of KubeRay.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from replicax._core.env import RX_CLUSTER_SECRET
from replicax._core.errors import UsageError
from replicax._processes.rules import PREEMPTED
from replicax.launch._batch_arguments import NAME
from replicax.launch._plan import Program

_BAD_ARGUMENT = 2
# Slurm's clock for signals has steps of a minute: the time left may be shorter by a minute.
_SECONDS_BEFORE_THE_END = 120
_SECONDS_TO_SAVE = 60

# Without ALL a site's setting may keep the environment, and the secret, from the tasks.
_SRUN = ("--kill-on-bad-exit=1", "--distribution=block", "--export=ALL")

# srun passes on the exit code: 42 of a program that has saved its state, 143 after SIGTERM.
_AGAIN = """\
code=$?
case $code in 42|143)
    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {times} ]; then scontrol requeue "$SLURM_JOB_ID"; fi ;;
esac
exit $code
"""


@dataclass(frozen=True)
class Batch:
    """The options of a batch job; see `replicax slurm --help`."""

    script: str
    args: Sequence[str] = ()
    is_module: bool = False
    nodes: int = 1
    workers_per_node: int = 1
    gpus_per_node: int | None = None
    cpus_per_worker: int | None = None
    time: str | None = None
    partition: str | None = None
    name: str | None = None
    max_restarts: int = 0
    sbatch: Sequence[str] = ()
    submit: bool = False

    @property
    def program(self) -> Program:
        return Program(self.script, tuple(self.args), is_module=self.is_module)

    @property
    def text(self) -> str:
        asked = {
            "job-name": self.name or _plain(name_of(self.script)),
            "nodes": self.nodes,
            "ntasks-per-node": self.workers_per_node,
            "gpus-per-node": self.gpus_per_node,
            "cpus-per-task": self.cpus_per_worker,
            "time": self.time,
            "partition": self.partition,
            # To the steps, so that workers can save.
            "signal": f"TERM@{_SECONDS_BEFORE_THE_END}" if self.time else None,
        }
        options = [f"--{name}={_word(value)}" for name, value in asked.items() if value is not None]
        again = ["--requeue", "--open-mode=append"] if self.max_restarts else []
        run = ["replicax", "run", "--grace", str(_SECONDS_TO_SAVE)]
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in [*options, *again, *map(_option, self.sbatch)]),
            "# The environment brings the secret to all tasks; no command line shows it.",
            "RX_CLUSTER_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
            ': "${RX_CLUSTER_SECRET:?could not be made}"',
            "export RX_CLUSTER_SECRET",
            f"srun {' '.join(_SRUN)} {shlex.join([*run, *self.program.words])}",
        ]
        last = _AGAIN.format(times=self.max_restarts) if self.max_restarts else ""
        return "\n".join(lines) + "\n" + last


def name_of(script: str) -> str:
    """A name for the job of a program.

    Example:
        >>> name_of("jobs/train_big.py"), name_of("pkg.train")
        ('train_big', 'train')
    """
    last = script.rstrip("/").rpartition("/")[2].removesuffix(".py")
    return last.rpartition(".")[2] or "train"


def _plain(name: str) -> str:
    return re.sub("[^A-Za-z0-9._-]+", "-", name).strip("-") or "train"


def _option(text: str) -> str:
    """An option of the user's, whose value the shell has already freed of its quotes."""
    name, equals, value = text.partition("=")
    return f"{name}={_word(value)}" if equals and re.fullmatch("--[a-z-]+", name) else _line(text)


def _word(value: str | int) -> str:
    """A value in quotes where sbatch needs them; it reads a backslash as a shell does."""
    text = _line(str(value))
    if re.fullmatch(r"[\w.:,/=@%+*()\[\]-]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _line(text: str) -> str:
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise UsageError(
            f"An option of sbatch must be one line, got {text!r}. Remove the line break."
        )
    return text


def write_or_submit(batch: Batch) -> int:
    """Print the script, or hand it to `sbatch`; return the exit code."""
    if not any(option.startswith(("--chdir", "-D")) for option in batch.sbatch):
        batch.program.check(
            "slurm", " If it is elsewhere, name the folder: --sbatch=--chdir=/path."
        )
    if not batch.submit:
        print(batch.text, end="", flush=True)
        return 0
    try:
        return subprocess.run(["sbatch"], input=batch.text, text=True).returncode
    except OSError as error:
        print(
            f"replicax slurm: error: cannot run sbatch for --submit: {error.strerror}. Run this "
            "on a machine with Slurm, or leave out --submit and take the script there.",
            file=sys.stderr,
        )
        return _BAD_ARGUMENT


_PORT = 2222
_SECONDS_TO_END = 90  # more than `_SECONDS_TO_SAVE`, so that a save is also written out
_GPU = "nvidia.com/gpu"
_JOB = "worker"  # a part of the names of pods
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# Words that YAML does not take for texts.
_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}
# Characters that JSON leaves as they are, and that YAML refuses, or takes for line breaks.
_UNPRINTABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True)
class Manifests:
    """The options of manifests; see `replicax k8s --help`."""

    script: str
    image: str
    args: Sequence[str] = ()
    is_module: bool = False
    workers: int = 1
    ps: int | None = None
    gpus: int | None = None
    cpus: str | None = None
    memory: str | None = None
    name: str | None = None
    namespace: str | None = None
    max_restarts: int = 3
    ray_version: str = "2.60.0"

    @property
    def text(self) -> str:
        made = [self._ray_job()] if self.ps else [self._secret(), self._job_set()]
        return "---\n".join(to_yaml(one) for one in made)

    @property
    def _name(self) -> str:
        if self.name:
            return self.name
        name = re.sub("[^a-z0-9]+", "-", name_of(self.script).lower()).strip("-")
        if not NAME.fullmatch(name):
            raise UsageError(
                f"Cannot name the job {name!r} after {self.script!r}. Pass --name with at most 40 "
                "lower-case letters, digits and hyphens, a letter first."
            )
        return name

    @property
    def _program(self) -> tuple[str, ...]:
        return Program(self.script, tuple(self.args), is_module=self.is_module).words

    @property
    def _escaped(self) -> list[str]:
        """The program's words for `command`, in which Kubernetes expands `$(NAME)` and `$$`."""
        return [word.replace("$", "$$") for word in self._program]

    def _metadata(self, name: str) -> dict[str, Any]:
        return {"name": name, **({"namespace": self.namespace} if self.namespace else {})}

    def _secret(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self._metadata(self._name),
            "stringData": {RX_CLUSTER_SECRET: secrets.token_hex(32)},
        }

    def _job_set(self) -> dict[str, Any]:
        """One Indexed Job: a worker that fails or is preempted makes all start again."""
        fails = [
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": _JOB, "operator": "In", "values": [PREEMPTED]},
            },
            {
                "action": "FailJob",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
        ]
        job = {
            "completionMode": "Indexed",
            "completions": self.workers,
            "parallelism": self.workers,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": fails},
            "template": {"spec": self._worker_pod()},
        }
        rule = {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": self._metadata(self._name),
            "spec": {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "failurePolicy": {"maxRestarts": self.max_restarts, "rules": [rule]},
                "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
            },
        }

    def _worker_pod(self) -> dict[str, Any]:
        hosts = [f"{self._name}-{_JOB}-0-{i}.{self._name}" for i in range(self.workers)]
        config = {
            "cluster": {"worker": [f"{host}:{_PORT}" for host in hosts]},
            "task": {"type": "worker", "index": "$(JOB_COMPLETION_INDEX)"},
        }
        secret = {"name": self._name, "key": RX_CLUSTER_SECRET}
        container = {
            "name": _JOB,
            "image": self.image,
            # It gets SIGTERM, and passes it on.
            "command": ["replicax", "run", "--grace", str(_SECONDS_TO_SAVE), *self._escaped],
            "env": [
                {  # before TF_CONFIG, which refers to it
                    "name": "JOB_COMPLETION_INDEX",
                    "valueFrom": {"fieldRef": {"fieldPath": _INDEX}},
                },
                {"name": "TF_CONFIG", "value": json.dumps(config)},
                {"name": RX_CLUSTER_SECRET, "valueFrom": {"secretKeyRef": secret}},
            ],
            "ports": [{"containerPort": _PORT}],
            # Whether the launcher answers to signals. Hanging workers end by their own watchdog,
            # which a probe must not hurry: compiling is silent for minutes.
            "livenessProbe": {
                "exec": {"command": ["sh", "-c", "! grep -q '^State:.[TZ]' /proc/1/status"]},
                "periodSeconds": 30,
                "failureThreshold": 4,
            },
            **self._resources(),
        }
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _SECONDS_TO_END,
            "containers": [{**container, **_MOUNT}],
            "volumes": [_SHARED_MEMORY],
        }

    def _ray_job(self) -> dict[str, Any]:
        """A Ray cluster with a pod for each worker and each server, and one for the program."""
        members = self.workers + (self.ps or 0)
        limits = self._resources() or {"resources": {"limits": {"cpu": "1", "memory": "4Gi"}}}
        member = {
            "name": "ray-worker",
            "image": self.image,
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "ray stop"]}}},
            **limits,
        }
        head = {
            "name": "ray-head",
            "image": self.image,
            "resources": {"limits": {"cpu": "2", "memory": self.memory or "4Gi"}},
        }
        group = {
            "groupName": "members",
            "replicas": members,
            "minReplicas": members,
            "maxReplicas": members,
            "rayStartParams": {},
            "template": {
                "spec": {
                    "terminationGracePeriodSeconds": _SECONDS_TO_END,
                    "containers": [{**member, **_MOUNT}],
                    "volumes": [_SHARED_MEMORY],
                }
            },
        }
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": self._metadata(self._name),
            "spec": {
                "entrypoint": shlex.join(["python", *self._program]),
                "shutdownAfterJobFinishes": True,
                "backoffLimit": self.max_restarts,
                "rayClusterSpec": {
                    "rayVersion": self.ray_version,
                    "authOptions": {"mode": "token"},
                    "headGroupSpec": {
                        "rayStartParams": {"num-cpus": "0"},
                        "template": {"spec": {"containers": [head]}},
                    },
                    "workerGroupSpecs": [group],
                },
            },
        }

    def _resources(self) -> dict[str, Any]:
        asked = {
            _GPU: str(self.gpus) if self.gpus else None,
            "cpu": self.cpus,
            "memory": self.memory,
        }
        limits = {name: value for name, value in asked.items() if value}
        return {"resources": {"limits": limits}} if limits else {}


# NCCL and loaders of data need more than the 64 MB that a container has.
_SHARED_MEMORY = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
_MOUNT = {"volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}]}


def to_yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Mappings, lists, texts and numbers as YAML.

    Example:
        >>> print(to_yaml({"a": 1, "b": ["x", {"c": "2", "d": []}]}), end="")
        a: 1
        b:
          - x
          - c: "2"
            d: []
    """
    lines: list[str] = []
    for key, item in value.items():
        lines += _entry(f"{indent}{_scalar(key)}:", item, indent + "  ")
    return "".join(lines)


def _entry(start: str, item: Any, indent: str) -> list[str]:
    if isinstance(item, dict) and item:
        return [start + "\n", to_yaml(cast("dict[str, Any]", item), indent)]
    if isinstance(item, list) and item:
        return [start + "\n", *(_element(one, indent) for one in cast("list[Any]", item))]
    return [f"{start} {_scalar(item)}\n"]


def _element(item: Any, indent: str) -> str:
    if not isinstance(item, dict):
        return f"{indent}- {_scalar(item)}\n"
    text = to_yaml(cast("dict[str, Any]", item), indent + "  ")
    return indent + "- " + text.removeprefix(indent + "  ")


def _scalar(value: Any) -> str:
    """A plain text where YAML would read it as one, else as JSON, which is YAML, too."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][\w./-]*", value, re.ASCII)
    if is_plain and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=False)  # YAML has no surrogates
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
