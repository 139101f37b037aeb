ringbell_abi_pkg.sv
mul_const.sv
hll_hash.sv
hll_registers.sv
hll.sv
