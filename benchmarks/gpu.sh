#!/bin/sh
# Everything that needs a GPU, in under six minutes on one H200: MFU, bits per byte after 60 s (Tiny
# Shakespeare) and 180 s (speeches), decode rate of one stream and 64, and the tests of the CUDA paths.
#
#     sh benchmarks/gpu.sh CORPORA [OUT]         on a machine with a GPU; CORPORA holds tinyshakespeare.txt
#                                                and speeches.jsonl.gz; OUT (default: .) gets gpu.json
#     sh benchmarks/gpu.sh --dry-run [OUT]       the same steps in tiny sizes, on a CPU too
#
# PYTHON names another Python than python3. It needs torch (with CUDA), numpy, safetensors and filelock; what is
# missing is named, and installed into that Python only where PIP=install is set.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if [ $# -lt 1 ]; then
    echo "gpu.sh: CORPORA is missing: the folder of tinyshakespeare.txt and speeches.jsonl.gz (or --dry-run)" >&2
    exit 2
fi
if ! command -v "$python" >/dev/null; then
    echo "gpu.sh: $python is missing; name a Python with PYTHON=..." >&2
    exit 2
fi
missing=
for package in torch numpy safetensors filelock; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" ||
        missing="$missing $package"
done
if [ -n "$missing" ] && [ "${PIP:-}" = install ]; then
    # shellcheck disable=SC2086
    "$python" -m pip install -q $missing
elif [ -n "$missing" ]; then
    echo "gpu.sh: $python lacks$missing; set PIP=install to install it there, or PYTHON to use another" >&2
    exit 2
fi

out=${2:-.}
if [ "$1" = --dry-run ]; then
    PYTHONPATH=. exec "$python" benchmarks/gpu.py --short --json "$out/gpu.json"
fi
PYTHONPATH=. exec "$python" benchmarks/gpu.py --corpora "$1" --json "$out/gpu.json"
