// Beats with any number of bytes into whole beats, one a cycle: the pieces of a stream for an engine that takes whole beats.
//
// The kept bytes of a beat lie at its start. A flush, with a beat of any number of bytes, gives what is there as a last beat, which may be
// empty. With items_i only whole words of 32 bits leave in it; up to three bytes of the next one stay (rest_o).
module pack (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         items_i,
  input  logic         in_valid_i,
  output logic         in_ready_o,
  input  logic [511:0] in_i,
  input  logic [63:0]  in_keep_i,
  input  logic         in_flush_i,

  output logic         out_valid_o,
  input  logic         out_ready_i,
  output logic [511:0] out_o,
  output logic [63:0]  out_keep_o,
  output logic         out_last_o,

  // Bytes that are kept for the next beat, and the first three of them.
  output logic [5:0]   rest_len_o,
  output logic [23:0]  rest_o
);
  logic [511:0] hold_q;
  logic [5:0]   fill_q;
  logic         flush_q;  // a last beat is still to leave

  logic [6:0] bytes;
  always_comb begin
    bytes = '0;
    for (int unsigned i = 0; i < 64; i++) bytes = bytes + 7'(in_keep_i[i]);
  end
  // Bytes behind those that are kept are none of the stream's.
  logic [511:0] kept;
  always_comb for (int unsigned i = 0; i < 64; i++) kept[8*i +: 8] = in_keep_i[i] ? in_i[8*i +: 8] : 8'd0;

  wire          free  = !out_valid_o || out_ready_i;
  wire          taken = in_valid_i && in_ready_o;
  wire [1023:0] both  = {512'b0, hold_q} | ({512'b0, kept} << {fill_q, 3'b000});
  wire [6:0]    total = {1'b0, fill_q} + bytes;
  wire          whole = total[6];
  // What a last beat takes of the bytes that are there.
  wire          ends  = flush_q || (in_flush_i && !whole);
  wire [5:0]    there = flush_q ? fill_q : total[5:0];
  wire [5:0]    goes  = items_i ? {there[5:2], 2'b00} : there;
  wire [511:0]  left  = flush_q ? hold_q : both[511:0];

  assign in_ready_o = free && !flush_q;
  assign rest_len_o = fill_q;
  assign rest_o     = hold_q[23:0];

  always_ff @(posedge clk_i) begin
    if (free) begin
      out_valid_o <= flush_q || (taken && (whole || in_flush_i));
      out_last_o  <= ends;
      out_o       <= left;
      out_keep_o  <= ends ? (64'd1 << goes) - 64'd1 : '1;
    end
    if (free && (flush_q || taken)) begin
      hold_q  <= ends ? left >> {goes, 3'b000} : whole ? both[1023:512] : both[511:0];
      fill_q  <= ends ? there - goes : total[5:0];
      flush_q <= !flush_q && in_flush_i && whole;
    end
    if (!rst_ni) begin
      out_valid_o <= 1'b0;
      hold_q      <= '0;
      fill_q      <= '0;
      flush_q     <= 1'b0;
    end
  end
endmodule
