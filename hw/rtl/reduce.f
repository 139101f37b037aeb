ringbell_abi_pkg.sv
float_add.sv
reduce.sv
