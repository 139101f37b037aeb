ringbell_abi_pkg.sv
fifo.sv
float_add.sv
reduce.sv
sequencer.sv
dma_whole.sv
clock_gate.sv
ring.sv
