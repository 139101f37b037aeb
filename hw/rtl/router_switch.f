ringbell_abi_pkg.sv
router_arbiter.sv
router_switch.sv
