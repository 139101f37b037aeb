"""Steps that fail, hang or refuse, as `run` tells them; and its ratios."""

import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

LOADER = importlib.machinery.SourceFileLoader("run", str(pathlib.Path(__file__).with_name("run")))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", LOADER))
LOADER.exec_module(run)


class Runs(unittest.TestCase):
    def test_every_end_is_told(self):
        refusal = "========= Error: Device not supported. Please refer to the documentation"
        for script, group, of, end, why in [
            ("exit 3", "correctness", None, "FAILED", "exit code 3"),
            ("sleep 600", "correctness", None, "FAILED", "not done after 1 s, and stopped"),
            ("test $WORD = heard && test $RINGBELL_GPU = emulated", "correctness", None, "passed", ""),
            ("echo 1 passed", "correctness", "mixed", "passed", ""),
            ("echo 0 passed", "correctness", "mixed", "FAILED", "it did not say that one test has passed"),
            ("echo x SKIPPED on CUDA: a reason; echo 1 passed", "correctness", "mixed", "SKIPPED", "a reason"),
            ("kill -9 $$", "correctness", "mixed", "FAILED", "signal 9"),
            (f"echo '{refusal}'; exit 1", "sanitizer", None, "SKIPPED", f"compute-sanitizer says: {refusal[10:]}"),
            ("echo '========= ERROR SUMMARY: 1'; exit 77", "sanitizer", None, "FAILED", "exit code 77"),
        ]:
            step = run.Step(group, "name", 60, ["sh", "-c", script], of, WORD="heard")
            with tempfile.TemporaryDirectory() as folder:
                told = run.ended(step, 1 if "sleep" in script else 60, pathlib.Path(folder) / "log", "emulated")
            self.assertEqual(told, (end, why), script)
        absent = run.Step("correctness", "name", 60, ["/nonexistent/program"])
        self.assertEqual(run.ended(absent, 60, pathlib.Path("/dev/null"), "cuda")[0], "FAILED")

    def test_ratios_are_of_the_same_run_and_gaps_are_told(self):
        flags = [{"series": "flag", "parameter": p, "p50_us": v, "p99_us": v + 1} for p, v in [(1.0, 9.0), (50.0, 2.0)]]
        copies = [{"series": "host-to-device", "algbw_gbs": 50.0}, {"series": "device-to-host", "algbw_gbs": 40.0}]
        reports = {
            "floor": {"rows": flags + copies},
            "doorbell": {"rows": [{"series": "empty", "parameter": 50.0, "p50_us": 2.4, "p99_us": 6.0}]},
            "send-bw": {"rows": [{"size_bytes": 64 << 20, "algbw_gbs": 36.0}]},
            "hll-1": {"rows": [{"busbw_gbs": 1.0, "kernel_gbs": 2.0, "wrong": 1}]},
        }
        machine = {"date": "", "cpu": "", "cores": 1, "kernel": "", "gpus": None}
        results = {"commit": "", "profile": "", "machine": machine, "gpu": "cuda", "short": False, "reports": reports}
        table = run.table(results, [])
        for want in [
            "| 2.40 µs | flag GPU ↔ CPU: 2.00 µs | 1.20× | ≤ 1.3× |",
            "| 6.00 µs | flag GPU ↔ CPU: 3.00 µs | 2.00× |",
            "| not measured | flag GPU ↔ CPU: 2.00 µs | – | ≤ 3× |",
            "gpu_send one way | 36.0 GB/s | pinned copy, the slower way: 40.0 GB/s | 0.90× |",
            "path | not measured | hll-1: not measured | – |",
        ]:
            self.assertIn(want, table)
        self.assertNotIn("No figure", table)
        self.assertIn("No figure below is one of a GPU", run.table({**results, "gpu": "emulated"}, []))


unittest.main()
