"""An engine's process, to be killed: serves a toy until its deadline. Prints the ring's path and share."""

import json
import sys
import time
from dataclasses import asdict

from services.gpu_backend.device.driver import Device
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.rig import Rig

settings = SchedulerSettings(lanes=16, step_tokens=256, pages=64)
rig = Rig(Device(), settings, own=DeviceSettings(deadline_s=60.0), name=sys.argv[1])
share = rig.ring.share(0)
rig.ring.grant(share)
print(json.dumps({"path": str(rig.region.path), "share": asdict(share)}), flush=True)
time.sleep(60)
