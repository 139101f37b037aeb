ringbell_abi_pkg.sv
fifo.sv
dma_split.sv
dma_align.sv
dma_read.sv
