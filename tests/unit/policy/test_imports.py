import subprocess
import sys


def test_the_package_does_not_load_the_sdk():
    code = "import sys, selective_rollout.policy; print('openai' in sys.modules, 'httpx' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
