"""Draws ratio and encode speed of a core, as means over the databases, from the kinds.csv of a run.

    python3 -m venv plot && plot/bin/pip install matplotlib
    plot/bin/python bench/page/plot.py bench/runs/DATE-page/kinds.csv docs/page-codec.svg
"""

import csv
import math
import sys
from collections import defaultdict

import matplotlib

matplotlib.use("svg")
# Text stays text, and the same run gives the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pagehaul", "font.size": 11})
import matplotlib.pyplot as plt

# Name, codecs, colour.
FAMILIES = [
    ("page, every frame decoded again", ["page:1", "page:2", "page:3", "page:4", "page:5"], "#0b6e4f"),
    ("zstd, the library alone", ["zstd:1", "zstd:3", "zstd:13", "zstd:19"], "#b23a48"),
    ("LZ4, the library alone", ["lz4:1"], "#3d5a80"),
]
# Where a label stands, in points from its point; above it if nothing is said.
BESIDE = {"page:1": (9, "left"), "page:2": (9, "left"), "page:3": (9, "left"), "page:5": (-9, "right")}


def means(path):
    """Ratio and encode speed in MB/s of each codec, as geometric means over the databases."""
    logs = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] != "all":
                continue
            raw = int(row["raw_bytes"])
            ratio = raw / int(row["stored_bytes"])
            speed = raw / 1e6 / float(row["encode_cpu_s"])
            logs[row["codec"]].append((math.log(ratio), math.log(speed)))
    return {codec: [math.exp(sum(one) / len(of)) for one in zip(*of)] for codec, of in logs.items()}


def main(source, target):
    of = means(source)
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    for name, codecs, colour in FAMILIES:
        ratios, speeds = zip(*(of[codec] for codec in codecs))
        axes.plot(speeds, ratios, "o-", color=colour, label=name, linewidth=1.5)
        for codec, ratio, speed in zip(codecs, ratios, speeds):
            across, align = BESIDE.get(codec, (0, "center"))
            up = -2 if across else 8
            axes.annotate(codec, (speed, ratio), (across, up), textcoords="offset points", ha=align, color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    speeds = [2, 5, 10, 20, 50, 100, 200, 500, 1000]
    ratios = [3, 4, 5, 6, 8, 10, 15]
    axes.set_xticks(speeds, map(str, speeds))
    axes.set_yticks(ratios, map(str, ratios))
    axes.minorticks_off()
    axes.set_xlim(1.6, 1600)
    axes.set_ylim(2.7, 18)
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("encode, MB/s of a core (faster: to the right)")
    axes.set_ylabel("ratio (smaller: up)")
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
