"""Starts, updates and stops a local stage. A file in the stage's folder records which processes belong to it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import urllib3

from infra.cli import LOCAL
from infra.layer import LayerPlatform, build_layer
from tools.local import deployment, emulator, processes, valkey, workers
from tools.local.errors import LocalError
from tools.local.outputs import Outputs
from tools.local.progress import Progress

# The first answer takes long, because the emulator must start a process of ingest.
MAX_FIRST_ANSWER_SECONDS = 30.0
# The pause between two requests to ingest. Each request runs a function, so the pause is not shorter.
FIRST_ANSWER_POLL_SECONDS = 0.2
ROOT = Path(__file__).parents[2]
REGION = "us-east-1"
LANES = ("valkey", "dynamodb")
# On a large machine, more processes than these would take memory without being faster.
MAX_LOCAL_SLOTS = 16


@dataclass(frozen=True)
class Instance:
    """The record of the last start: the mark of its processes, and their ports."""

    mark: str
    valkey_port: int
    valkey_cluster_port: int
    emulator_port: int
    has_valkey: bool = True
    """False in a stage that has only the DynamoDB lane."""

    @property
    def lane(self) -> str:
        return "valkey" if self.has_valkey else "dynamodb"


class Stage:
    """The local stage in the folder `home`. Stages in other folders may run at the same time."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._run = home / "run"
        self._record = self._run / "instance.json"
        self._kept_file = home / "kept.json"
        self.outputs_file = home / "outputs.json"

    def up(
        self,
        progress: Progress,
        *,
        overrides: Mapping[str, Any] | None = None,
        address: str | None = None,
        with_rules: bool = False,
    ) -> Outputs:
        """Start and deploy the stage, or deploy changes to the running stage. Return its outputs.

        `address` is that of a tunnel to the stage, if platforms call the stage through one.
        If a start fails, stop every process again. If the running stage has another lane than `overrides` names,
        replace the stage by a new one. A new stage takes over what `keep` wrote; its rules only if `with_rules`.
        """
        with self._lock(), ExitStack() as on_failure:
            instance = self._running()
            over = {**({"lane": instance.lane} if instance else {}), **(overrides or {})}
            settings = _settings(over)
            has_valkey, slots = settings.get("lane", "valkey") != "dynamodb", slots_of(settings)
            over["concurrency"] = {"conversation_processor": slots, **settings.get("concurrency", {})}
            self.keep()
            kept = self._kept()
            if not (instance and instance.has_valkey == has_valkey and self.outputs_file.exists()):
                self._clear(progress)
                # Keep the processes' logs for the developer. The next `up` removes them.
                on_failure.callback(self._stop_processes)
                instance = self._start(progress, has_valkey=has_valkey, wanted_port=kept.get("emulator_port"))
            secrets = kept.get("webhook_secrets", {})
            outputs = self._deploy(instance, progress, overrides=over, secrets=secrets, address=address)
            for rules in kept.get("rules", []) if with_rules else []:
                outputs.client("dynamodb").put_item(TableName=outputs.RulesTableName, Item=rules)
            with progress.step("Start the functions"):
                _wait_until_answering(f"{outputs.ApiEndpoint}/webhook/generic")
                # Otherwise the first batch would be late.
                workers.warm_up(outputs, slots=slots, shards=settings.get("shards", 1))
            outputs.write(self.outputs_file)
            self.keep()
            on_failure.pop_all()
            return outputs

    def down(self, progress: Progress) -> int:
        """Stop every process of this stage and remove its files. Return how many processes there were."""
        with self._lock(), progress.step("Stop"):
            return self._stop()

    def keep(self) -> int:
        """Write the running stage's port, webhook secrets and rules for a stage after it. Return how many rules it has.

        If nobody has ever set rules on this stage, keep those of the stage before it.
        """
        instance = self._running()
        if not instance or not self.outputs_file.exists():
            return 0
        outputs = Outputs.read(self.outputs_file)
        table = outputs.client("dynamodb").get_paginator("scan").paginate(TableName=outputs.RulesTableName)
        rules = table.build_full_result()["Items"]
        secrets = deployment.read_webhook_secrets(outputs, self._run)
        kept = {"emulator_port": instance.emulator_port, "webhook_secrets": secrets}
        self._kept_file.write_text(json.dumps({**kept, "rules": rules or self._kept().get("rules", [])}, indent=2))
        # One item has no rules: it is the table's version.
        return sum("rules" in item for item in rules)

    def outputs(self) -> Outputs:
        """Return the outputs of the running stage. Raise LocalError if it is not up."""
        if not self._running():
            raise LocalError("The local stage is not up: start it with `make up`.")
        return Outputs.read(self.outputs_file)

    @contextmanager
    def without_valkey(self) -> Iterator[None]:
        """Stop Valkey while the block runs. Then start it again with its data."""
        instance = self._recorded()
        assert instance, "the stage is up"
        try:
            valkey.stop(instance=instance.mark)
            yield
        finally:
            self._start_valkey(instance)
            valkey.wait_until_ready(instance.valkey_port)

    def lane(self) -> str | None:
        """Return the lane of the running stage, or None if it is not up."""
        instance = self._running()
        return instance.lane if instance else None

    def processes(self) -> int:
        """Return how many processes of this stage are running."""
        instance = self._recorded()
        return len(processes.belonging_to(instance.mark)) if instance else 0

    def _start(self, progress: Progress, *, has_valkey: bool, wanted_port: int | None) -> Instance:
        with progress.step("Install the emulator"):
            python = emulator.ensure_installed(self._home / "emulator")
        with progress.step("Build the layer"):
            requirements = ROOT / "lambdas" / "requirements.txt"
            build_layer(requirements, platform=LayerPlatform.HOST, cache=ROOT / ".build" / "layers")
        of_emulator, of_valkey, of_its_cluster = _free_ports(wanted_port, None, None)
        if wanted_port not in (None, of_emulator):
            progress.say(f"Another program has taken port {wanted_port}. The stage has a new one, {of_emulator}.")
        instance = Instance(uuid.uuid4().hex, of_valkey, of_its_cluster, of_emulator, has_valkey)
        self._run.mkdir(parents=True, exist_ok=True)
        # Write the record before the first process starts, so that `down` finds all processes even if a start fails.
        self._record.write_text(json.dumps(asdict(instance)))
        if has_valkey:
            with progress.step("Start Valkey"):
                self._start_valkey(instance)
        with progress.step("Start the emulator"):
            emulator.start(
                python=python,
                port=instance.emulator_port,
                region=REGION,
                folder=self._run / "emulator",
                instance=instance.mark,
            )
        with progress.step("Bootstrap"):
            self._cdk(instance).bootstrap()
        if has_valkey:
            with progress.step("Wait for Valkey"):
                valkey.wait_until_ready(instance.valkey_port)
        return instance

    def _start_valkey(self, instance: Instance) -> None:
        valkey.start(
            port=instance.valkey_port,
            cluster_port=instance.valkey_cluster_port,
            folder=self._run / "valkey",
            instance=instance.mark,
        )

    def _deploy(
        self,
        instance: Instance,
        progress: Progress,
        *,
        overrides: Mapping[str, Any],
        secrets: Mapping[str, Any],
        address: str | None,
    ) -> Outputs:
        valkey_url = valkey.url(instance.valkey_port) if instance.has_valkey else None
        context = {"stage": LOCAL, "overrides": json.dumps(overrides)}
        if valkey_url:
            context["valkeyUrl"] = valkey_url
        with progress.step("Deploy"):
            deployed = self._cdk(instance).deploy(context=context)
            return deployment.read_back(
                deployed,
                endpoint_url=emulator.url(instance.emulator_port),
                region=REGION,
                valkey_url=valkey_url,
                kept_secrets=secrets,
                address=address,
            )

    def _cdk(self, instance: Instance) -> deployment.Cdk:
        return deployment.Cdk(
            endpoint_url=emulator.url(instance.emulator_port),
            region=REGION,
            folder=self._run,
            instance=instance.mark,
        )

    def _running(self) -> Instance | None:
        instance = self._recorded()
        if not instance or not processes.belonging_to(instance.mark):
            return None
        has_what_it_needs = not instance.has_valkey or valkey.is_alive(instance.valkey_port)
        return instance if has_what_it_needs and emulator.is_alive(instance.emulator_port) else None

    def _recorded(self) -> Instance | None:
        try:
            return Instance(**json.loads(self._record.read_text()))
        except (FileNotFoundError, json.JSONDecodeError, TypeError):
            return None

    def _kept(self) -> dict[str, Any]:
        try:
            return dict(**json.loads(self._kept_file.read_text()))
        except (FileNotFoundError, TypeError, ValueError):
            return {}

    def _clear(self, progress: Progress) -> None:
        if self._record.exists():
            with progress.step("Stop the running stage" if self._running() else "Stop what is left of a stage"):
                self._stop()

    def _stop(self) -> int:
        stopped = self._stop_processes()
        shutil.rmtree(self._run, ignore_errors=True)
        return stopped

    def _stop_processes(self) -> int:
        instance = self._recorded()
        self.outputs_file.unlink(missing_ok=True)
        return processes.stop(instance.mark) if instance else 0

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        with (self._home / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LocalError("Another `up` or `down` of this stage is running: wait until it has ended.") from error
            yield


def _settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    stage = json.loads((ROOT / "cdk.json").read_text())["context"]["stages"][LOCAL]
    return {**stage, **overrides}


def slots_of(settings: Mapping[str, Any]) -> int:
    """Return how many batches are emitted at once. Each takes a process, which a machine cannot have by the hundred."""
    shards: int = settings.get("shards", 1)
    return max(min(2 * (os.cpu_count() or 1), MAX_LOCAL_SLOTS), shards)


def _free_ports(*wanted: int | None) -> list[int]:
    """Return a free port for each wanted one: the same, unless another program has it."""
    # Keep all sockets open until the last port is chosen, so that no port is chosen twice.
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in wanted]
        for each, port in zip(sockets, wanted, strict=True):
            # Without this, a connection that was closed a minute ago would make the port look taken.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                each.bind(("127.0.0.1", port or 0))
            except OSError:
                each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_until_answering(url: str) -> None:
    """Wait until ingest refuses an unsigned POST. The refusal shows that ingest works."""
    deadline = time.monotonic() + MAX_FIRST_ANSWER_SECONDS
    while True:
        try:
            response = urllib3.request("POST", url, json={}, timeout=MAX_FIRST_ANSWER_SECONDS, retries=False)
            if response.status < 500 and response.status != 404:
                return
            problem = f"{response.status} {response.data[:500].decode(errors='replace')}"
        except urllib3.exceptions.HTTPError as error:
            problem = str(error)
        if time.monotonic() > deadline:
            raise LocalError(f"The webhook does not answer: {problem}")
        time.sleep(FIRST_ANSWER_POLL_SECONDS)
