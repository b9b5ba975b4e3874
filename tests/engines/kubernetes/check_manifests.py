"""Validates examples/kubernetes offline: run in .engines/kubernetes, the folder as argument."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

VERSION = "1.34.0"
FOLDER = Path(sys.argv[1])
# Variables that identify the second of two pods, by file.
POD = {
    "job.yaml": {"JOB_COMPLETION_INDEX": "1"},
    "jobset.yaml": {"JOB_COMPLETION_INDEX": "1"},
    "trainjob.yaml": {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29400",
    },
    "mpijob.yaml": {},
}
DNS = {
    "job.yaml": "tcp:train-0.train:PORT",
    "jobset.yaml": "tcp:train-node-0-0.train:PORT",
    "trainjob.yaml": "tcp:train-node-0-0.train:PORT",
}


# The fields of an MPIJob in mpi-operator's v2beta1, which has no schema package. Its pods use the
# schema of Kubernetes.
_COUNT = {"type": "integer", "minimum": 0}
_REPLICAS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["template"],
    "properties": {
        "replicas": _COUNT,
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object"},
    },
}
_RUN_POLICY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "activeDeadlineSeconds": _COUNT,
        "backoffLimit": _COUNT,
        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
        "managedBy": {"type": "string"},
        "schedulingPolicy": {"type": "object"},
        "suspend": {"type": "boolean"},
        "ttlSecondsAfterFinished": _COUNT,
    },
}
MPIJOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["mpiReplicaSpecs"],
            "properties": {
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "mpiReplicaSpecs": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["Launcher"],
                    "properties": {"Launcher": _REPLICAS, "Worker": _REPLICAS},
                },
                "runLauncherAsWorker": {"type": "boolean"},
                "runPolicy": _RUN_POLICY,
                "slotsPerWorker": {"type": "integer", "minimum": 1},
                "sshAuthMountPath": {"type": "string"},
            },
        },
    },
}


def documents(name: str) -> list[dict[str, Any]]:
    """Returns the documents in one of the files."""
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


def of_kind(name: str, kind: str) -> dict[str, Any]:
    """Returns the document of this kind in a file."""
    return next(document for document in documents(name) if document["kind"] == kind)


def check(document: dict[str, Any]) -> None:
    """Checks against Kubernetes' own schema; unknown fields are errors."""
    kubernetes_validate.validate(document, VERSION, strict=True)


def check_pod(template: dict[str, Any]) -> None:
    """Checks a pod template inside another kind of document."""
    pod = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "a"},
        "template": template,
    }
    check(pod)


def check_model(model: Any, document: dict[str, Any]) -> None:
    """Checks against a pydantic model, which drops fields that it does not know."""
    kept = model.from_dict(document).to_dict()
    assert kept == document, (kept, document)


def containers(found: Any) -> Iterator[dict[str, Any]]:
    """Yields all containers that run a command of Rueda."""
    if isinstance(found, dict):
        if found.get("command", [""])[0] == "rueda":
            yield found
        for value in found.values():
            yield from containers(value)
    elif isinstance(found, list):
        for value in found:
            yield from containers(value)


def check_job() -> None:
    for document in documents("job.yaml"):
        check(document)
    service, job = (of_kind("job.yaml", kind) for kind in ("Service", "Job"))
    spec = job["spec"]
    # These give the pods the names that --rendezvous uses.
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert f"tcp:{job['metadata']['name']}-0.{service['metadata']['name']}:29400" in str(spec)


def check_jobset() -> None:
    jobset = of_kind("jobset.yaml", "JobSet")
    check_model(models.JobsetV1alpha2JobSet, jobset)
    for part in jobset["spec"]["replicatedJobs"]:
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "a"},
            **part["template"],
        }
        check(job)


def check_trainjob() -> None:
    check_model(models.TrainerV1alpha1TrainJob, of_kind("trainjob.yaml", "TrainJob"))


def check_mpijob() -> None:
    job = of_kind("mpijob.yaml", "MPIJob")
    jsonschema.validate(job, MPIJOB)
    metadata = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": job["metadata"]}
    check(metadata)
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        check_pod(replicas["template"])


def check_what_is_wrong_is_found() -> None:
    """Otherwise the checks above would prove nothing."""
    job = of_kind("job.yaml", "Job")
    job["spec"]["completionModus"] = "Indexed"
    trainjob = of_kind("trainjob.yaml", "TrainJob")
    trainjob["spec"]["trainer"]["nodes"] = 2
    mpijob = of_kind("mpijob.yaml", "MPIJob")
    mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["slots"] = 2
    for wrong in (
        lambda: check(job),
        lambda: check_model(models.TrainerV1alpha1TrainJob, trainjob),
        lambda: jsonschema.validate(mpijob, MPIJOB),
    ):
        try:
            wrong()
        except (
            kubernetes_validate.ValidationError,
            jsonschema.ValidationError,
            AssertionError,
        ):
            continue
        raise AssertionError("a wrong field was not found")


def check_commands() -> None:
    """Runs them as the second pod would; the numbers of pods and of nodes must agree."""
    for name, variables in POD.items():
        (container,) = [c for document in documents(name) for c in containers(document)]
        command = [
            "true" if word == "python" else word
            for word in container["command"]
            if word != "train.py"
        ]
        command[:2] = [sys.executable, "-m", "rueda.launcher", "run", "--dry-run"]
        if name == "mpijob.yaml":  # the operator's host file
            hosts = Path("hostfile")
            hosts.write_text(
                "train-worker-0.train.default.svc slots=2\ntrain-worker-1.train.default.svc slots=2\n"
            )
            command[command.index("/etc/mpi/hostfile")] = str(hosts.resolve())
        environment = {**os.environ, "RUEDA_SECRET": "s" * 32, "OMP_NUM_THREADS": "1", **variables}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (name, ran.stderr)
        ranks = [line for line in ran.stdout.splitlines() if "RUEDA_RANK=" in line]
        if name in DNS:
            assert [f"RUEDA_RANK={n} " in line for n, line in zip((2, 3), ranks, strict=True)] == [
                True,
                True,
            ]
            assert all(f"RUEDA_RENDEZVOUS={DNS[name]}" in line for line in ranks), ranks
            assert "RUEDA_SECRET" in str(container["env"])
        else:
            assert len(ranks) == 4
    spec = of_kind("job.yaml", "Job")["spec"]
    within = of_kind("jobset.yaml", "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]
    nodes = of_kind("trainjob.yaml", "TrainJob")["spec"]["trainer"]["numNodes"]
    assert {
        spec["completions"],
        spec["parallelism"],
        within["completions"],
        within["parallelism"],
        nodes,
    } == {2}


for one in (
    check_job,
    check_jobset,
    check_trainjob,
    check_mpijob,
    check_what_is_wrong_is_found,
    check_commands,
):
    one()
    print("ok", one.__name__)
