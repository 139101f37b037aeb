// A queue of Depth elements: each that goes in comes out once, in order. Its memory is read one cycle ahead, so it may be block RAM.
module fifo #(
  parameter int unsigned Width = 8,
  // Power of two, at least 2. One more waits at the output.
  parameter int unsigned Depth = 4
) (
  input  logic             clk_i,
  input  logic             rst_ni,

  input  logic             in_valid_i,
  output logic             in_ready_o,
  input  logic [Width-1:0] in_i,

  output logic             out_valid_o,
  input  logic             out_ready_i,
  output logic [Width-1:0] out_o
`ifdef FORMAL
  // Elements inside, modulo 256.
  , output logic [7:0]     f_held_o
`endif
);
  localparam int unsigned AtW = $clog2(Depth);

  logic [Width-1:0] mem_q [Depth];
  logic [AtW:0]     write_q, read_q;
  wire              empty = write_q == read_q;
  wire              next  = !empty && (!out_valid_o || out_ready_i);

  assign in_ready_o = write_q - read_q != (AtW+1)'(Depth);

  always_ff @(posedge clk_i) begin
    if (in_valid_i && in_ready_o) begin
      mem_q[write_q[AtW-1:0]] <= in_i;
      write_q <= write_q + 1'b1;
    end
    if (next) begin
      out_o  <= mem_q[read_q[AtW-1:0]];
      read_q <= read_q + 1'b1;
    end
    if (next)             out_valid_o <= 1'b1;
    else if (out_ready_i) out_valid_o <= 1'b0;
    if (!rst_ni) begin
      write_q     <= '0;
      read_q      <= '0;
      out_valid_o <= 1'b0;
    end
  end

`ifdef FORMAL
  `include "fifo_props.svh"
`endif
endmodule
