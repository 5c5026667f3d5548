#!/usr/bin/env python3
"""Writes golden/dequant.bin: random blocks of every quantised type and the f32 values they mean.

The values come from the reference dequantisers (gen/dequant.py of the shared reference folder),
which compute in float64; every product there is exact, so rounding the result once to float32 is
what float32 arithmetic in the order of docs/numerics.md gives.

Layout, little endian, per type: u32 GGUF id, u32 blocks, u32 block bytes, u32 block elements,
blocks x bytes, blocks x elements x f32.

usage: gen_dequant_golden.py REFERENCE_GEN_DIR OUT
"""
import struct
import sys

import numpy as np

IDS = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39,
}
# where the f16 scales of a block are; none may be an infinity or a NaN
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "MXFP4": [],
}


def main():
    sys.path.insert(0, sys.argv[1])
    import dequant

    rng = np.random.default_rng(20)
    out = bytearray()
    for name, gguf_id in IDS.items():
        elems, size = dequant.SZ[name]
        blocks = 4 if elems == 256 else 12
        data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for i, block in enumerate(data):
            for at in HALVES[name]:
                half = int(rng.integers(0, 0x7C00)) | int(rng.integers(0, 2)) << 15
                if i == 0:
                    half &= 0x83FF  # a denormal scale
                if i == 1:
                    half = 0xFBFF  # the largest magnitude
                block[at:at + 2] = np.frombuffer(struct.pack("<H", half), np.uint8)
        if name == "MXFP4":
            data[:6, 0] = [0, 1, 2, 127, 254, 255]
        with np.errstate(over="ignore"):
            values = dequant.dequant(name, data.tobytes()).astype("<f4")
        out += struct.pack("<4I", gguf_id, blocks, size, elems) + data.tobytes() + values.tobytes()
    with open(sys.argv[2], "wb") as f:
        f.write(out)


main()
