#!/usr/bin/env python3
"""Stands between a client and a server on this machine and hands every byte on after a while, in both directions.

usage: delay.py PORT SERVER_PORT MILLISECONDS: what a client asks at PORT is answered after twice MILLISECONDS more. How much may be
under way is not limited; connections themselves are made at once.
"""

import asyncio
import sys

port, server_port, delay_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000


async def hand_on(reader, writer):
    loop = asyncio.get_running_loop()
    under_way = asyncio.Queue()

    async def deliver():
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    try:
        while data := await reader.read(1 << 18):
            under_way.put_nowait((loop.time() + delay_s, data))
    except ConnectionError:
        pass
    under_way.put_nowait((loop.time() + delay_s, b""))
    try:
        await delivery
    except ConnectionError:
        pass


async def serve(reader, writer):
    server_reader, server_writer = await asyncio.open_connection("127.0.0.1", server_port, limit=1 << 20)
    await asyncio.gather(hand_on(reader, server_writer), hand_on(server_reader, writer))


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


asyncio.run(main())
