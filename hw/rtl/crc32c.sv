// CRC-32C (RFC 3720 §12.1) of a stream, 64 bytes a cycle, as an engine for `onpath`: the bits of onc-engines::stream::checksum.
//
// Every beat but the last of a stream is whole; of the last one the kept bytes count, which lie at its start. A stream's end gives
// one beat of 16 bytes: the checksum and the number of bytes, of all streams since the reset (two little-endian words of 64 bits).
// Bytes that a last beat lacks are taken as zeros first. Six cycles at the end take them out again.
module crc32c (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         op_in_valid_i,
  output logic         op_in_ready_o,
  input  logic [511:0] op_in_i,
  input  logic [63:0]  op_in_keep_i,
  input  logic         op_in_last_i,

  output logic         op_res_valid_o,
  input  logic         op_res_ready_i,
  output logic [511:0] op_res_o,
  output logic [63:0]  op_res_keep_o,
  output logic         op_res_last_o
);
  localparam logic [31:0] Poly = 32'h82f6_3b78;
  localparam int unsigned Steps = 6;  // log2 of the bytes of a beat

  // Row r of the matrix whose last column (of `count`) is v, and each column before is the next one times x: bit r of a product is
  // the parity of the row's bits in the other factor. Bit 31 of a polynomial is its constant term.
  function automatic logic [511:0] row(input logic [31:0] v, input integer count, input logic [4:0] r);
    logic [31:0] w;
    integer i;
    row = '0;
    w = v;
    for (i = count - 1; i >= 0; i = i - 1) begin
      row[i] = w[r];
      w = (w >> 1) ^ (w[0] ? Poly : 32'd0);
    end
  endfunction
  // x^-bits.
  function automatic logic [31:0] inverse(input integer bits);
    logic [31:0] w;
    integer i;
    w = 32'h8000_0000;
    for (i = 0; i < bits; i = i + 1) w = ((w ^ (w[31] ? Poly : 32'd0)) << 1) | 32'(w[31]);
    inverse = w;
  endfunction

  // ---------------------------------------------------------------- 1: the kept bytes
  logic         busy_q;  // a stream has ended, and its result has not left
  logic         valid1_q, last1_q;
  logic [511:0] data1_q;
  logic [6:0]   bytes1_q, bytes;
  wire          taken = op_in_valid_i && op_in_ready_o;

  assign op_in_ready_o = !busy_q;
  always_comb begin
    bytes = '0;
    for (int unsigned i = 0; i < 64; i++) if (op_in_keep_i[i]) bytes = 7'(i + 1);
  end
  always_ff @(posedge clk_i) begin
    valid1_q <= taken && rst_ni;
    last1_q  <= op_in_last_i;
    bytes1_q <= bytes;
    for (int unsigned i = 0; i < 64; i++) data1_q[8*i +: 8] <= op_in_keep_i[i] ? op_in_i[8*i +: 8] : 8'd0;
  end

  // ---------------------------------------------------------------- 2 and 3: what the data adds, in parts of 64 bits, then whole
  logic         valid2_q, last2_q, valid3_q, last3_q;
  logic [6:0]   bytes2_q, bytes3_q;
  logic [255:0] part2_q;
  logic [31:0]  sum3_q;
  wire  [255:0] part;
  wire  [31:0]  sum, advanced;
  for (genvar r = 0; r < 32; r++) begin : gen_row
    localparam logic [511:0] Row = row(Poly, 512, 5'(r));
    for (genvar g = 0; g < 8; g++) begin : gen_part
      assign part[8*r + g] = ^(data1_q[64*g +: 64] & Row[64*g +: 64]);
    end
    assign sum[r] = ^part2_q[8*r +: 8];
    // The state counts as if it stood in the first bytes of the data.
    assign advanced[r] = ^(crc_q & Row[31:0]);
  end
  always_ff @(posedge clk_i) begin
    {valid2_q, valid3_q} <= rst_ni ? {valid1_q, valid2_q} : 2'b00;
    {last2_q, last3_q}   <= {last1_q, last2_q};
    {bytes2_q, bytes3_q} <= {bytes1_q, bytes2_q};
    part2_q <= part;
    sum3_q  <= sum;
  end

  // ---------------------------------------------------------------- 4: the state; at a stream's end without the zeros
  logic [31:0] crc_q;
  logic [63:0] bytes_q;
  logic        undo_q, done_q;
  logic [2:0]  step_q;
  logic [5:0]  zeros_q;
  wire  [31:0] undone [Steps];
  for (genvar k = 0; k < Steps; k++) begin : gen_undo
    localparam logic [31:0] Factor = inverse(8 << k);
    for (genvar r = 0; r < 32; r++) begin : gen_row
      localparam logic [511:0] Row = row(Factor, 32, 5'(r));
      assign undone[k][r] = ^(crc_q & Row[31:0]);
    end
  end
  always_ff @(posedge clk_i) begin
    if (valid3_q) begin
      if (bytes3_q != '0) crc_q <= advanced ^ sum3_q;
      bytes_q <= bytes_q + 64'(bytes3_q);
      zeros_q <= bytes3_q == '0 ? '0 : 6'(7'd64 - bytes3_q);
      step_q  <= '0;
      undo_q  <= last3_q;
    end
    if (undo_q) begin
      if (zeros_q[0]) crc_q <= undone[step_q];
      zeros_q <= zeros_q >> 1;
      step_q  <= step_q + 3'd1;
      if (step_q == 3'(Steps - 1)) begin
        undo_q <= 1'b0;
        done_q <= 1'b1;
      end
    end
    if (taken && op_in_last_i) busy_q <= 1'b1;
    if (done_q && op_res_ready_i) begin
      busy_q <= 1'b0;
      done_q <= 1'b0;
    end
    if (!rst_ni) begin
      crc_q   <= '1;
      bytes_q <= '0;
      undo_q  <= 1'b0;
      busy_q  <= 1'b0;
      done_q  <= 1'b0;
    end
  end

  assign op_res_valid_o = done_q;
  assign op_res_o       = {384'b0, bytes_q, 32'b0, ~crc_q};
  assign op_res_keep_o  = 64'hffff;
  assign op_res_last_o  = 1'b1;
endmodule
