#!/usr/bin/env bash
# farmhand beside llama.cpp as llama-cpp-python builds it: installs the peer (built from source, about a quarter of an hour on
# two cores), fetches the real models, brings them into the types of the table, and prints the table.
#
# usage: engine/benches/peer.sh [FOLDER] [options of peer.py, such as -t 1 -d 0 -r 3 --kv f16,q8_0 --flash 1,0]
#        FOLDER keeps peer and models between runs (default: target/peer); MODELS="a.gguf b.gguf" measures those files only
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in ""|-*) folder=target/peer ;; *) folder=$1; shift ;; esac
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if ! [ -x "$folder/venv/bin/python" ]; then
  python3 -m venv "$folder/venv"
fi
python=$folder/venv/bin/python
if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
  echo "building the peer" >&2
  "$folder/venv/bin/pip" install -q numpy llama-cpp-python >&2
fi

cargo build --release -q -p farmgate-engine
farmhand=${CARGO_TARGET_DIR:-target}/release/farmhand

if [ -z "${MODELS:-}" ]; then
  python3 tests/data/fetch_models.py "$folder/models" smollm2 qwen0.5 qwen1.5 >&2
  cargo run -q --release -p farmgate-engine --example synth_models -- "$folder/models" >&2
  cd "$folder/models"
  for from in SmolLM2-135M-Instruct.Q4_1 Qwen2.5-Coder-0.5B-Instruct-Q4_K_M Qwen2.5-Coder-1.5B-Instruct-Q4_K_M; do
    for type in Q4_0 Q4_K_M Q8_0; do
      case $from in *-"$type") to=$from.gguf ;; *) to=${from%%[-.]Instruct*}-$type.gguf ;; esac
      if ! [ -f "$to" ]; then
        "$python" "$OLDPWD/engine/benches/peer.py" "$from.gguf" --requantise "$type" "$to.part" >/dev/null 2>&1
        mv "$to.part" "$to"
      fi
      MODELS="${MODELS:-} $folder/models/$to"
    done
  done
  for type in Q4_0 Q4_K_M Q8_0; do
    MODELS="$MODELS $folder/models/synth-1B-$type.gguf"
  done
  cd "$OLDPWD"
fi
# shellcheck disable=SC2086 # file names without blanks, as made above
exec "$python" engine/benches/peer.py --farmhand "$farmhand" $MODELS "$@"
