ringbell_abi_pkg.sv
fifo.sv
dma_share.sv
