ringbell_abi_pkg.sv
fifo.sv
dma_whole.sv
