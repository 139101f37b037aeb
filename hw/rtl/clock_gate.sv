// A clock that runs in the cycles in which it is enabled; a card has a cell for it (UltraScale+: BUFGCE).
module clock_gate (
  input  logic clk_i,
  input  logic en_i,
  output logic clk_o
);
  logic en_q;
  always_latch if (!clk_i) en_q = en_i;
  assign clk_o = clk_i && en_q;
endmodule
