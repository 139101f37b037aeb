ringbell_abi_pkg.sv
router_link_life.sv
router_link_tx.sv
router_link_rx.sv
router_link.sv
