"""A process of a node that does what a test says and otherwise waits for SIGTERM, on which it ends as resumable; it needs no torch."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

job = json.loads(sys.argv[1])
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(75))
match job.get("deed"):
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    case "kill the step":
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(75)
    case "terminate the step":
        os.kill(os.getppid(), signal.SIGTERM)
    case "fail":
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": "the disk is full of cats"}))
        sys.exit(202)
    case "fail, and end late":
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": "the disk is full of cats", "is_final": True}))
        Path("../failed").touch()
    case "end after the other failed":
        while not Path("../failed").exists():
            time.sleep(0.1)
        sys.exit(75)
    case "stumble":
        sys.exit("a traceback")
    case "end well":
        sys.exit(0)
threading.Event().wait(600)
