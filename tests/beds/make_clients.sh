#!/bin/sh
# Install the programs that tests/programs runs: make_clients.sh PYTHON DIRECTORY BUILD [long].
# Old versions lie each in a directory of its own, DIRECTORY/NAME, for PYTHONPATH. All checkouts of this machine share one
# DIRECTORY of the same content, where that is allowed.
# With `long` also those that take minutes: more of Numba; in DIRECTORY/programs PyTorch and others, 5 GB, without the
# libraries of NVIDIA that they name, because tests/programs/stand_ins has others; and in DIRECTORY/long, because numba-cuda
# takes the place of numba.cuda in its whole environment, numba-cuda with its compiler, and PyCUDA, which is built here
# against the headers of NVIDIA's wheels and the simulated libcuda.
set -eu

python=$1 directory=$2 build=$(cd "$3" && pwd) long=${4:-}
shared=/var/cache/vgpu-tests/clients-$({ cat "$0" && "$python" -VV; } | md5sum | cut -c 1-12)
if mkdir -p "$shared" 2> /dev/null && [ -w "$shared" ]; then
  [ -L "$directory" ] || rm -rf "$directory"
  ln -sfn "$shared" "$directory"
  directory=$shared
  [ ! -e "$shared/.complete$long" ] || exit 0
  exec 9> "$shared/.lock$long"
  flock 9
  [ ! -e "$shared/.complete$long" ] || exit 0
fi
pip() { "$directory/bin/pip" install -q --disable-pip-version-check "$@"; }

# beside NAME REQUIREMENT...: installs them in DIRECTORY/NAME.
beside() {
  name=$1
  shift
  [ -e "$directory/$name" ] && return
  rm -rf "$directory/$name.new"
  pip --target "$directory/$name.new" "$@"
  mv "$directory/$name.new" "$directory/$name"
}

[ -x "$directory/bin/pip" ] || "$python" -m venv "$directory"
pip nvidia-ml-py gpustat nvitop numpy tinygrad 'cuda-bindings==12.9.*' 'drjit==1.5.*'
beside numba-0.59 'numba==0.59.*' 'numpy<1.27'
beside cuda-bindings-13 'cuda-bindings==13.*'
if [ -z "$long" ]; then
  touch "$directory/.complete"
  exit 0
fi
beside numba-0.61 'numba==0.61.*'
beside numba numba
clients=$directory
directory=$clients/programs
[ -x "$directory/bin/pip" ] || "$python" -m venv "$directory"
pip --no-deps torch==2.5.1 triton==3.1.0 jax==0.5.3 jaxlib==0.5.3 jax-cuda12-plugin==0.5.3 jax-cuda12-pjrt==0.5.3 \
  onnxruntime-gpu==1.20.2 faiss-gpu-cu12==1.14.1
pip packaging filelock fsspec jinja2 networkx sympy==1.13.1 typing-extensions \
  ml_dtypes opt_einsum scipy flatbuffers protobuf onnx==1.17.0 setuptools numpy halide==21.0.0 taichi==1.7.4
directory=$clients/long
[ -x "$directory/bin/pip" ] || "$python" -m venv "$directory"
pip numpy 'numba-cuda[cu12]' nvidia-cuda-runtime-cu12 nvidia-cuda-nvrtc-cu12 nvidia-cuda-nvcc-cu12 nvidia-cuda-cccl-cu12 \
  nvidia-cuda-profiler-api-cu12 nvidia-curand-cu12

wheels=$(echo "$directory"/lib/python3*/site-packages/nvidia)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir "$root/bin" "$root/lib64"
printf '#!/bin/sh\n' > "$root/bin/nvcc" # setup.py looks where it is, and does not call it
chmod +x "$root/bin/nvcc"
ln -s "$wheels/cuda_runtime/include" "$root/include"
ln -s "$build"/lib/sim/libcuda.so.* "$root/lib64/libcuda.so"
ln -s "$wheels"/curand/lib/libcurand.so.* "$root/lib64/libcurand.so"
includes=
for name in cuda_profiler_api cuda_runtime curand cuda_nvcc cuda_cccl; do
  includes=$includes:$wheels/$name/include
done
CUDA_ROOT=$root PATH=$root/bin:$PATH CPLUS_INCLUDE_PATH=${includes#:} LIBRARY_PATH=$root/lib64 \
  LDFLAGS=-L$root/lib64 pip pycuda
touch "$clients/.complete$long"
