"""A leader as a process of its own, for tests that kill or freeze it: leader_process.py ADDRESS ENGINE_ID PERIOD_S."""

import asyncio
import sys
import time

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.common import rpc


async def main(address: str, engine_id: str, period_s: float) -> None:
    info = pb.EngineInfo(
        engine_id=engine_id,
        address="127.0.0.1:1",
        model="small",
        epoch=time.time_ns(),
        page_tokens=64,
        page_count=100,
        max_context=2048,
    )
    report = pb.EngineReport(engine_id=engine_id, accepting=True)
    async with rpc.channel(address) as channel:
        call = scheduler_pb2_grpc.GlobalSchedulerStub(channel).Lead()
        await call.write(pb.LeaderUp(group_id=engine_id, engines=[info], reports=[report]))
        while await call.read():
            print("renewed", flush=True)
            await asyncio.sleep(period_s)
            await call.write(pb.LeaderUp(group_id=engine_id, reports=[report]))


asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
