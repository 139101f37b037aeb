ringbell_abi_pkg.sv
fifo.sv
direct.sv
