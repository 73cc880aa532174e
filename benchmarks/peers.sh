#!/bin/sh
# Times public libraries and this one on the same machine and driver, and prints one table (Markdown).
#   sh benchmarks/peers.sh [torchvulkan|torch-cpu|torch-cuda|tinygrad|ferrotensor|meganeura ...]
# The default is all but torch-cuda. Each peer gets an environment under $PEERS_HOME (~/.cache/peers), made once;
# this library is imported from the checkout, by $PYTHON, .venv/bin/python or python3.
# The JSON lines are kept in $PEERS_OUT (default: a temporary file). protocol.py lists cases and variables.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(dirname "$here")
home=${PEERS_HOME:-$HOME/.cache/peers}
out=${PEERS_OUT:-$(mktemp)}
ours=${PYTHON:-$root/.venv/bin/python}
[ -x "$ours" ] || ours=$(command -v python3)
export PYTHONPATH="$here"
: >"$out"

environment() { # name package...
    name=$1
    shift
    [ -x "$home/$name/bin/python" ] || { python3 -m venv "$home/$name" && "$home/$name/bin/pip" install -q "$@" >&2; }
}

time_peer() { # name python script; a process for each half, because some crash in a long product and should keep the rest
    for part in matmul mlp block; do
        case ${BENCH_CASES:-$part} in *"$part"*) ;; *) continue ;; esac
        printf '%s %s ...\n' "$1" "$part" >&2
        BENCH_CASES=${BENCH_CASES:-$part} "$2" "$here/$3" 2>"$out.log" >"$out.part" || {
            tail -n 3 "$out.log" >&2
            printf '{"peer": "%s", "case": "%s", "error": "the process died"}\n' "$1" "$part" >>"$out.part"
        }
        grep '^{' "$out.part" >>"$out" || true
    done
    rm -f "$out.part" "$out.log"
}

[ $# -gt 0 ] || set -- meganeura torchvulkan tinygrad ferrotensor torch-cpu
for peer in "$@"; do
    case $peer in
        meganeura) PYTHONPATH="$here:$root" time_peer meganeura "$ours" bench_meganeura.py ;;
        torchvulkan | torch-cpu | torch-cuda)
            environment torchvulkan numpy torch==2.13.0 torchvulkan==0.2.1
            export TORCH_DEVICE="${peer#torch}"
            TORCH_DEVICE=${TORCH_DEVICE#-}
            time_peer "$peer" "$home/torchvulkan/bin/python" bench_torchvulkan.py
            ;;
        tinygrad)
            environment tinygrad numpy tinygrad==0.14.0 dawn-python==0.3.0
            time_peer tinygrad "$home/tinygrad/bin/python" bench_tinygrad.py
            ;;
        ferrotensor)
            environment ferrotensor numpy ferrotensor==0.3.0
            time_peer ferrotensor "$home/ferrotensor/bin/python" bench_ferrotensor.py
            ;;
        *)
            echo "peers.sh: unknown peer $peer" >&2
            exit 2
            ;;
    esac
done
"$ours" "$here/peers_table.py" "$out"
