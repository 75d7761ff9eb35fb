// layer_gate.cu: the node of a prefill graph before each layer, and behind the last one.
#include "layer_gate.cuh"

extern "C" __global__ void __launch_bounds__(128, 1)
    pass_layer(hostless_gate::Gate* gate, hostless_gate::Sequence* sequences, const unsigned* sequence_count,
               const unsigned* block_tables, unsigned* error, unsigned layer, unsigned layers) {
  hostless_gate::pass(*gate, sequences, sequence_count, block_tables, error, layer, layers);
}
