"""CPUs and memory that a container may use, read from control groups as the kernel lays them out."""

import os
import subprocess
import sys

import pytest

from embed import machine
from embed.errors import OptionError

CPUS = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def no_openmp_setting(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


class System:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, folder):
        self.proc = folder / "proc"
        self.groups = folder / "cg\\040roup"  # with a space, which mountinfo writes as \040
        (self.proc / "self").mkdir(parents=True)
        self.point = folder / "cg roup"

    def process(self, cgroup, mountinfo):
        (self.proc / "self" / "cgroup").write_text(cgroup)
        (self.proc / "self" / "mountinfo").write_text(mountinfo)

    def unified(self, path, root="/"):
        self.process(f"0::{path}\n", f"30 23 0:26 {root} {self.groups} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")

    def legacy(self, path, root="/"):
        self.process(
            f"12:cpuset:/\n4:cpu,cpuacct:{path}\n3:memory:{path}\n",
            f"33 32 0:29 {root} {self.groups}/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
            f"34 32 0:30 {root} {self.groups}/memory rw shared:10 - cgroup cgroup rw,memory\n"
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
        )

    def write(self, path, text):
        (self.point / path).parent.mkdir(parents=True, exist_ok=True)
        (self.point / path).write_text(text)


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


@pytest.fixture
def many_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


def test_without_limits_every_cpu_counts(system, many_cpus):
    system.unified("/")
    assert machine.thread_limit(system.proc) == machine.Limit(64, "the machine's CPUs")


def test_a_kernel_without_cgroups_or_proc_limits_nothing(tmp_path, many_cpus):
    assert machine.thread_limit(tmp_path / "nowhere").count == 64
    assert machine.memory_limit(tmp_path / "nowhere").reason == "the machine's memory"


def test_affinity_limits(system, monkeypatch, many_cpus):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    system.unified("/")
    assert machine.thread_limit(system.proc) == machine.Limit(2, "the CPUs this process is bound to")


def test_a_real_process_obeys_its_affinity():
    script = "from embed.machine import thread_count; print(thread_count(None))"
    taskset = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert taskset.stdout == "1\n"


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("300000 100000", 3), ("150000 100000", 2), ("240000 100000", 2), ("10000 100000", 1), ("50000 20000", 3)],
)
def test_cgroup_v2_quota(quota, threads, system, many_cpus):
    system.unified("/app")
    system.write("app/cpu.max", f"{quota}\n")
    limit = machine.thread_limit(system.proc)
    assert limit.count == threads
    assert limit.reason.endswith("cg roup/app/cpu.max")


def test_the_tightest_group_above_counts(system, many_cpus):
    system.unified("/kube/pod/app")
    system.write("kube/pod/app/cpu.max", "max 100000\n")
    system.write("kube/pod/cpu.max", "200000 100000\n")
    system.write("kube/cpu.max", "800000 100000\n")
    system.write("kube/pod/app/memory.max", "max\n")
    system.write("kube/memory.max", "1000000\n")
    assert machine.thread_limit(system.proc).reason == f"a quota of 2 CPUs in {system.point}/kube/pod/cpu.max"
    assert machine.memory_limit(system.proc) == machine.Limit(1000000, f"a limit in {system.point}/kube/memory.max")


def test_cgroup_v1_quota_and_memory(system, many_cpus):
    system.legacy("/docker/abc")
    system.write("cpu/docker/abc/cpu.cfs_quota_us", "250000\n")
    system.write("cpu/docker/abc/cpu.cfs_period_us", "100000\n")
    system.write("cpu/docker/cpu.cfs_quota_us", "-1\n")
    system.write("cpu/docker/cpu.cfs_period_us", "100000\n")
    system.write("memory/docker/abc/memory.limit_in_bytes", "2000000\n")
    system.write("memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.thread_limit(system.proc).reason.startswith("a quota of 2.5 CPUs in")
    assert machine.thread_limit(system.proc).count == 3
    assert machine.memory_limit(system.proc).count == 2000000


def test_a_container_sees_its_group_as_the_root_of_the_mount(system, many_cpus):
    # v1 in a container: /proc/self/cgroup has the host's path, the mount shows that group alone
    system.legacy("/docker/abc", root="/docker/abc")
    system.write("cpu/cpu.cfs_quota_us", "400000\n")
    system.write("cpu/cpu.cfs_period_us", "100000\n")
    assert machine.thread_limit(system.proc).count == 4


@pytest.mark.parametrize("path", ["/../../other", "/elsewhere"])
def test_a_path_outside_of_the_mount_means_its_root(path, system, many_cpus):
    system.unified(path, root="/" if ".." in path else "/docker/abc")
    system.write("cpu.max", "500000 100000\n")
    assert machine.thread_limit(system.proc).count == 5


@pytest.mark.parametrize("quota", ["", "max", "junk 100000", "100000 0", "1 2 3"])
def test_files_that_say_no_quota_limit_nothing(quota, system, many_cpus):
    system.unified("/app")
    system.write("app/cpu.max", quota)
    assert machine.thread_limit(system.proc).count == 64


@pytest.mark.parametrize(
    ("value", "threads"), [("3", 3), ("3,2", 3), (" 3 ", 3), ("100", 64), ("0", 64), ("-1", 64), ("many", 64), ("", 64)]
)
def test_omp_num_threads_is_respected(value, threads, system, many_cpus, monkeypatch):
    system.unified("/")
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    limit = machine.thread_limit(system.proc)
    assert limit.count == threads
    assert (limit.reason == "OMP_NUM_THREADS") == (threads == 3)


def test_a_number_that_was_asked_for_is_taken():
    assert machine.thread_count(7) == 7
    assert machine.thread_count(None) <= CPUS


@pytest.mark.parametrize("threads", [0, -1, 1025, 2.0, "2", True])
def test_a_senseless_number_is_refused(threads):
    with pytest.raises(OptionError, match=r"threads .* (is not a whole number|this machine takes 1 to \d+)"):
        machine.thread_count(threads)
