// The registers of one lane of `hll`: 65,536 of 6 bits in rows of four, each the highest rank of its items since it was cleared.
//
// Takes an item in each cycle, also of one register twice and thrice in a row. A row can be read or cleared meanwhile no item comes:
// three cycles after the last one or later.
module hll_registers (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        valid_i,
  input  logic [15:0] slot_i,
  input  logic [5:0]  rank_i,

  input  logic        clear_i,
  input  logic [13:0] row_i,
  // The row is read in cycles with en_i, and stays.
  input  logic        en_i,
  output logic [23:0] row_o
);
  // An item: 1, its register is being read; 2, compared with what was read, or with the items before it whose values that misses; 3, written.
  logic        valid1_q, valid2_q, valid3_q;
  logic [15:0] slot1_q, slot2_q, slot3_q;
  logic [5:0]  rank1_q, value2_q, value3_q;

  wire  [5:0] old = valid2_q && slot2_q == slot1_q ? value2_q :
                    valid3_q && slot3_q == slot1_q ? value3_q : row_o[6*slot1_q[1:0] +: 6];
  always_ff @(posedge clk_i) begin
    {valid1_q, valid2_q, valid3_q} <= rst_ni ? {valid_i, valid1_q, valid2_q} : 3'b000;
    {slot1_q, slot2_q, slot3_q}    <= {slot_i, slot1_q, slot2_q};
    rank1_q  <= rank_i;
    value2_q <= rank1_q > old ? rank1_q : old;
    value3_q <= value2_q;
  end

  wire [13:0] read_row  = valid_i ? slot_i[15:2] : row_i;
  wire [13:0] write_row = clear_i ? row_i : slot2_q[15:2];
  for (genvar b = 0; b < 4; b++) begin : gen_bank
    logic [5:0] bank_q [16384];
    logic [5:0] read_q;
    always_ff @(posedge clk_i) begin
      if (en_i) read_q <= bank_q[read_row];
      if (clear_i || (valid2_q && slot2_q[1:0] == 2'(b))) bank_q[write_row] <= clear_i ? '0 : value2_q;
    end
    assign row_o[6*b +: 6] = read_q;
  end

`ifdef FORMAL
  `include "hll_registers_props.svh"
`endif
endmodule
