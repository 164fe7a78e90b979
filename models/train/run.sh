#!/bin/sh
# Corpus -> tokenizer -> target -> samples -> draft -> figures. Everything but the two model folders goes to work/.
# Needs: python with requirements.txt, a C++ compiler (for torch.compile). PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
"$python" prepare.py
"$python" train_target.py
"$python" sample.py
"$python" train_draft.py
"$python" evaluate.py
