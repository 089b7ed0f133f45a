"""`replicax slurm` and `replicax k8s`: what they write, and what a scheduler makes of it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from replicax.cluster_resolver import detect
from replicax.launch._cli import main
from replicax.launch._jobs import to_yaml

from helpers import LEAN, completed, wait_until
from processes import running_with

yaml = pytest.importorskip("yaml")


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    """A folder with the programs of these tests, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name in ("train.py", "my train.py", "é.py", "jobs/big.py"):
        (tmp_path / name).touch()


@pytest.fixture
def written(capsys):

    def written(*arguments):
        assert main(arguments) == 0
        return capsys.readouterr().out

    return written


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs first on PATH that note their arguments, or their input, and do a little."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DIR", str(tmp_path))

    def programs(**texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return tmp_path

    return programs


NOTE = 'printf "%s\\n" "$@" > $DIR/asked; echo $RX_CLUSTER_SECRET > $DIR/secret; exit ${CODE:-0}'


def test_the_batch_script_asks_for_what_was_said(written):
    options = ("--nodes", "4", "--gpus-per-node", "8", "--time", "1:00:00", "--partition", "p")
    asked = written("slurm", *options, "--sbatch=--account=me", "jobs/big.py").splitlines()
    assert asked[0] == "#!/bin/bash"
    assert {line for line in asked if line.startswith("#SBATCH")} >= {
        "#SBATCH --job-name=big",
        "#SBATCH --nodes=4",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --time=1:00:00",
        "#SBATCH --partition=p",
        "#SBATCH --account=me",
    }


def test_the_batch_script_runs_the_program_with_a_secret(written, programs):
    folder = programs(srun=NOTE)
    script = written("slurm", "train.py", "--name", "a b", "$HOME", "'")
    assert subprocess.run(["bash"], input=script, text=True, check=False).returncode == 0
    asked = (folder / "asked").read_text().splitlines()
    assert "--export=ALL" in asked
    assert asked[asked.index("replicax") :] == [
        *("replicax", "run", "--grace", "60", "train.py", "--name", "a b", "$HOME", "'")
    ]
    assert len((folder / "secret").read_text().strip()) == 64


def test_values_for_sbatch_are_one_word(written):
    """It splits a line as a shell does."""
    odd = 'a b # "c" \\'
    options = ("--name", odd, "--partition", "p q", f"--sbatch=--comment={odd}", "--sbatch=-A me")
    asked = written("slurm", *options, "my train.py").splitlines()
    lines = [shlex.split(line, comments=True) for line in asked if line.startswith("#SBATCH")]
    words = [shlex.split(line.removeprefix("#SBATCH")) for line in asked if "#SBATCH" in line]
    assert not any(lines)  # the shell takes them for comments
    assert [f"--job-name={odd}"] in words
    assert ["--partition=p q"] in words
    assert [f"--comment={odd}"] in words
    assert ["-A", "me"] in words


def test_the_default_name_of_a_job_is_plain(written):
    assert "#SBATCH --job-name=my-train" in written("slurm", "my train.py").splitlines()
    assert "#SBATCH --job-name=train" in written("slurm", "é.py").splitlines()


@pytest.mark.parametrize("option", ["--name=a\nb", "--partition=p\r", "--sbatch=-A a\nrm x"])
def test_an_option_of_sbatch_has_no_line_break(option, capsys):
    assert main(["slurm", option, "train.py"]) == 2
    assert capsys.readouterr().out == ""


def test_without_a_secret_the_job_ends(written, programs):
    folder = programs(srun=NOTE, od="exit 1")
    script = written("slurm", "train.py")
    assert subprocess.run(["bash"], input=script, text=True, check=False).returncode != 0
    assert not (folder / "asked").exists()


# A step of two tasks on one node, started and ended as `srun --kill-on-bad-exit` does. Each run has
# a loopback address of its own, because the tasks' ports are always the same.
SRUN = """
while [[ $1 == --* ]]; do shift; done
export SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2
export SLURM_STEP_NODELIST=127.57.$(($$ / 256 % 256)).$(($$ % 256))
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & done
code=0
for task in 0 1; do
    wait -n || { code=$((code ? code : $?)); kill $(jobs -p) 2> /dev/null; }
done
exit $code
"""
STEPS = """
import os, sys
import keras, numpy as np, replicax as rx
strategy = rx.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
class Fault(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and str(task) == sys.argv[1]:
            os._exit(3)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
x = np.arange(32.0, dtype="float32").reshape(16, 2) / 32
options = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0, "callbacks": [Fault()]}
losses = model.fit(x, x[:, :1], **options).history["loss"]
sys.stdout.write(f"task {task} of {strategy.num_replicas_in_sync}: {losses[0]:.6f}\\n")
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("fails", "code"), [("nobody", 0), ("1", 3)])
def test_the_tasks_of_a_step_train_together_and_end_together(written, programs, fails, code):
    folder = programs(srun=SRUN, replicax=f'exec {sys.executable} -m replicax.launch "$@"')
    (folder / "train.py").write_text(STEPS)
    script = written("slurm", "train.py", fails)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RX_")}
    environ |= {**LEAN, "JAX_NUM_CPU_DEVICES": "1", "RX_COMPILATION_CACHE": "off"}
    done = completed(["bash"], input=script, env=environ, seconds=150)
    wait_until(lambda: not running_with(f"DIR={folder}"))
    # rows (a, b), 1 · a + 1 · b - a = b: the mean of the squares of 1/32, 3/32, …, 31/32
    loss = sum((2 * row + 1) ** 2 for row in range(16)) / 16 / 32**2
    told = [] if code else [f"task 0 of 2: {loss:.6f}", f"task 1 of 2: {loss:.6f}"]
    shown = [line for line in done.stdout.splitlines() if line.startswith("task ")]
    assert (sorted(shown), done.returncode) == (told, code), done.stderr
    assert not code or "Lost: worker 1" in done.stderr  # the other one says whom it misses


@pytest.mark.parametrize(
    ("code", "earlier", "again"), [(42, "0", True), (143, "1", True), (42, "2", False), (1, "0", 0)]
)
def test_a_job_that_has_saved_is_queued_again(written, programs, code, earlier, again):
    folder = programs(srun=NOTE, scontrol='echo "$@" > $DIR/again')
    script = written("slurm", "--max-restarts", "2", "train.py")
    variables = {"CODE": str(code), "SLURM_RESTART_COUNT": earlier, "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=script, text=True, env={**os.environ, **variables})
    assert done.returncode == code
    assert (folder / "again").exists() == bool(again)
    if again:
        assert (folder / "again").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("--time 2hours", "2:00:00"),
        ("--time 2:00", "2:00:00"),
        ("--sbatch account=me", "--sbatch=--account=me"),
        ("--sbatch --account=me", "--sbatch=--account=me"),
    ],
)
def test_an_option_that_sbatch_would_refuse_or_misread(typed, named, capsys):
    with pytest.raises(SystemExit):
        main(["slurm", *typed.split(), "train.py"])
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["2:00:00", "1-0:30:00", "2-12", "90", "UNLIMITED"])
def test_a_limit_reaches_the_job(limit, written):
    assert f"#SBATCH --time={limit}" in written("slurm", "--time", limit, "train.py").splitlines()


@pytest.mark.parametrize("options", [(), ("--submit",)])
def test_a_missing_program_is_refused_unless_it_is_elsewhere(options, programs, capsys):
    folder = programs(sbatch="cat > $DIR/script")
    assert main(["slurm", *options, "missing.py"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "missing.py" in said.err and "--sbatch=--chdir=" in said.err
    assert not (folder / "script").exists()
    for fine in (["--sbatch=--chdir=/elsewhere", "missing.py"], ["-m", "missing"]):
        assert main(["slurm", *options, *fine]) == 0


def test_without_a_program_only_the_program_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        main(["slurm"])
    assert capsys.readouterr().err.endswith("required: script\n")


def test_the_batch_script_can_be_submitted(programs):
    folder = programs(sbatch="cat > $DIR/script; exit 5")
    assert main(["slurm", "--submit", "train.py"]) == 5
    assert "replicax run" in (folder / "script").read_text()


def test_without_sbatch_there_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["slurm", "--submit", "-m", "train"]) == 2
    assert "sbatch" in capsys.readouterr().err


def test_the_workers_of_a_job_set_find_each_other_and_a_secret(written):
    text = written("k8s", "--image", "r/t:1", "--workers", "3", "--gpus", "8", "jobs/my_train.py")
    secret, job_set = yaml.safe_load_all(text)
    (job,) = job_set["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    variables = {one["name"]: one.get("value") for one in container["env"]}
    environ = {"TF_CONFIG": variables["TF_CONFIG"].replace("$(JOB_COMPLETION_INDEX)", "2")}
    resolver = detect(environ)
    # JobSet names a pod JOBSET-JOB-NUMBER-POD, and its Service after the JobSet.
    assert resolver.cluster_spec().job_tasks("worker") == [
        f"my-train-worker-0-{i}.my-train:2222" for i in range(3)
    ]
    assert resolver.task_id == 2
    named = container["env"][-1]["valueFrom"]["secretKeyRef"]
    assert named["name"] == secret["metadata"]["name"]
    assert len(secret["stringData"][named["key"]]) == 64


def test_a_pod_that_is_preempted_has_time_to_save_and_counts_as_no_failure(written):
    _, job_set = yaml.safe_load_all(written("k8s", "--image", "i", "train.py", "--lr", "no"))
    job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[-3:] == ["train.py", "--lr", "no"]
    assert float(command[command.index("--grace") + 1]) < pod["terminationGracePeriodSeconds"]
    codes, disrupted = job["podFailurePolicy"]["rules"]
    assert codes["onExitCodes"]["values"] == [42]
    assert disrupted["onPodConditions"][0]["type"] == "DisruptionTarget"
    (rule,) = job_set["spec"]["failurePolicy"]["rules"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"


def test_the_probe_fails_for_a_launcher_that_is_stopped(written):
    _, job_set = yaml.safe_load_all(written("k8s", "--image", "i", "train.py"))
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    probe = pod["containers"][0]["livenessProbe"]["exec"]["command"]
    for state, code in (("S (sleeping)", 0), ("T (stopped)", 1)):
        status = f"<(printf 'Name:\\tx\\nState:\\t{state}\\n')"
        command = probe[-1].replace("/proc/1/status", status)
        assert subprocess.run(["bash", "-c", command]).returncode == code


def test_parameter_servers_are_a_ray_job_with_a_pod_for_each_member(written):
    arguments = ("--workers", "4", "--ps", "2", "--image", "i", "train.py", "a b")
    (job,) = yaml.safe_load_all(written("k8s", *arguments))
    assert (job["kind"], job["spec"]["entrypoint"]) == ("RayJob", "python train.py 'a b'")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert {group[name] for name in ("replicas", "minReplicas", "maxReplicas")} == {6}


@pytest.mark.parametrize(
    "option",
    [
        "--name=A",
        "--name=" + "a" * 41,
        "--memory=x",
        "--workers=0",
        "--namespace=-a",
        "--image=a b",
        "--image=r/T:1:2",
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(option, capsys):
    with pytest.raises(SystemExit):
        main(["k8s", "--image", "i", option, "train.py"])
    assert option[2:6] in capsys.readouterr().err


def test_a_dollar_of_the_program_is_none_of_kubernetes(written):
    words = ["$HOME", "$$", "$(JOB_COMPLETION_INDEX)", "a$"]
    _, job_set = yaml.safe_load_all(written("k8s", "--image", "i", "train.py", *words))
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert not [word for word in container["command"] if word.replace("$$", "").count("$")]
    assert [word.replace("$$", "$") for word in container["command"][-4:]] == words
    assert any("$(JOB_COMPLETION_INDEX)" in one.get("value", "") for one in container["env"])


@pytest.mark.parametrize("script", ["2big.py", "___.py", "a" * 41 + ".py"])
def test_a_script_whose_name_kubernetes_does_not_take_needs_another(script, capsys):
    assert main(["k8s", "--image", "i", script]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--name" in said.err
    assert main(["k8s", "--image", "i", "--name", "a", script]) == 0


def test_a_namespace_is_longer_than_a_name_and_may_begin_with_a_digit(written):
    for name in ("1-a", "a" * 63):
        for made in yaml.safe_load_all(written("k8s", "--image=i", "--namespace", name, "a.py")):
            assert made["metadata"]["namespace"] == name


def test_texts_stay_texts_in_yaml():
    odd = ["\U0001f600", "a\x7f", "\x85b", "\u2028", "\u2029", "\x00", "\ufeff"]
    texts = [
        *odd,
        "yes",
        "1",
        "1e3",
        "a: b",
        "- a",
        "#a",
        "",
        "é",
        "\n",
        "null",
        "0x1",
        "a b",
        "~",
        "/a",
    ]
    value = {"list": texts, "of": [{"a": 1, "b": {"c": []}}, {"d": True}], **{t: t for t in texts}}
    assert yaml.safe_load(to_yaml(value)) == value


@pytest.mark.skipif("RX_TESTS_CRDS" not in os.environ, reason="RX_TESTS_CRDS: a folder with CRDs")
@pytest.mark.parametrize(
    ("file", "version", "options"),
    [
        ("jobset.x-k8s.io_jobsets.yaml", "v1alpha2", ("--gpus", "8", "--cpus", "4")),
        ("ray.io_rayjobs.yaml", "v1", ("--ps", "2", "--gpus", "1", "--memory", "16Gi")),
    ],
)
def test_what_is_written_follows_the_published_schema(written, file, version, options):
    jsonschema = pytest.importorskip("jsonschema")
    definition = yaml.safe_load(Path(os.environ["RX_TESTS_CRDS"], file).read_text())
    (schema,) = (
        one["schema"]["openAPIV3Schema"]
        for one in definition["spec"]["versions"]
        if one["name"] == version
    )
    schema["properties"]["metadata"] = {"type": "object"}
    *_, made = yaml.safe_load_all(written("k8s", "--image", "i", *options, "train.py"))
    jsonschema.validate(made, strict(schema))


def strict(schema):
    """The schema, which then knows no other fields than it names, as the API server prunes them."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {}
    is_closed = "properties" in schema and schema.get("type") == "object"
    closed = {"additionalProperties": False} if is_closed else {}
    return {**closed, **{name: strict(one) for name, one in schema.items()}}
