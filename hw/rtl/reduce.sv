// Element-wise reduction of two streams, 64 bytes a cycle: f32, f16, bf16 and i32; sum, min and max.
//
// The bits are those of onc-engines::reduce: integers wrap, min and max propagate NaN and hold -0 to be below +0, and a result that
// is not a number has the canonical bits. A type or operation that is not here is marked as an error, with data of zeros.
// A beat comes six cycles after it was taken when its taker is ready. While that is not, the whole pipeline stands.
module reduce (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         in_valid_i,
  output logic         in_ready_o,
  // Codes of dtype_e and redop_e.
  input  logic [7:0]   dtype_i,
  input  logic [7:0]   redop_i,
  // The result is the first operand, of any type.
  input  logic         copy_i,
  input  logic [511:0] a_i,
  input  logic [511:0] b_i,
  input  logic [63:0]  keep_i,
  input  logic         last_i,

  output logic         out_valid_o,
  input  logic         out_ready_i,
  output logic [511:0] out_o,
  output logic [63:0]  out_keep_o,
  output logic         out_last_o,
  output logic         out_error_o
);
  // Cycles of float_add.
  localparam int unsigned Depth = 5;

  localparam logic [2:0] F32  = 3'd0;
  localparam logic [2:0] F16  = 3'd1;
  localparam logic [2:0] Bf16 = 3'd2;
  localparam logic [2:0] Pick = 3'd3;  // no float sum: the result of the first stage
  localparam logic [2:0] Bad  = 3'd4;

  wire is_f32  = dtype_i == ringbell_abi_pkg::DTYPE_F32;
  wire is_f16  = dtype_i == ringbell_abi_pkg::DTYPE_F16;
  wire is_bf16 = dtype_i == ringbell_abi_pkg::DTYPE_BF16;
  wire is_i32  = dtype_i == ringbell_abi_pkg::DTYPE_I32;
  wire is_sum  = redop_i == ringbell_abi_pkg::REDOP_SUM;
  wire is_min  = redop_i == ringbell_abi_pkg::REDOP_MIN;
  wire is_max  = redop_i == ringbell_abi_pkg::REDOP_MAX;

  logic [2:0] kind;
  always_comb begin
    kind = Bad;
    if (is_sum && is_f32)  kind = F32;
    if (is_sum && is_f16)  kind = F16;
    if (is_sum && is_bf16) kind = Bf16;
    if (is_sum && is_i32)  kind = Pick;
    if ((is_min || is_max) && (is_f32 || is_f16 || is_bf16 || is_i32)) kind = Pick;
    if (copy_i) kind = Pick;
  end

  // ---------------------------------------------------------------- Sums of integers, min and max, in one cycle
  // Floats are compared as signed integers whose order is theirs; the lower bits of negative numbers are inverted for that. NaN
  // gets the key that wins.
  function automatic logic [31:0] key32(input logic [31:0] v, input logic is_float, input logic most);
    key32 = v;
    if (is_float && v[30:23] == '1 && v[22:0] != '0) key32 = most ? 32'h7fff_ffff : 32'h8000_0000;
    else if (is_float && v[31]) key32 = {1'b1, ~v[30:0]};
  endfunction
  function automatic logic [15:0] key16(input logic [15:0] v, input logic brain, input logic most);
    key16 = v;
    if (brain ? v[14:7] == '1 && v[6:0] != '0 : v[14:10] == '1 && v[9:0] != '0) key16 = most ? 16'h7fff : 16'h8000;
    else if (v[15]) key16 = {1'b1, ~v[14:0]};
  endfunction
  // A key of NaN gives its canonical bits.
  localparam logic [31:0] Nan32   = 32'h7fc0_0000;
  localparam logic [15:0] NanHalf = 16'h7e00;
  localparam logic [15:0] NanBf   = 16'h7fc0;

  logic [511:0] picked, picked32, picked16;
  for (genvar i = 0; i < 16; i++) begin : gen_pick32
    wire [31:0] a = a_i[32*i +: 32];
    wire [31:0] b = b_i[32*i +: 32];
    wire [31:0] ka = key32(a, is_f32, is_max);
    wire [31:0] kb = key32(b, is_f32, is_max);
    wire second = is_max ? $signed(kb) > $signed(ka) : $signed(kb) < $signed(ka);
    wire nan = is_f32 && (second ? kb : ka) == (is_max ? 32'h7fff_ffff : 32'h8000_0000);
    assign picked32[32*i +: 32] = is_sum ? a + b : nan ? Nan32 : second ? b : a;
  end
  for (genvar i = 0; i < 32; i++) begin : gen_pick16
    wire [15:0] a = a_i[16*i +: 16];
    wire [15:0] b = b_i[16*i +: 16];
    wire [15:0] ka = key16(a, is_bf16, is_max);
    wire [15:0] kb = key16(b, is_bf16, is_max);
    wire second = is_max ? $signed(kb) > $signed(ka) : $signed(kb) < $signed(ka);
    wire nan = (second ? kb : ka) == (is_max ? 16'h7fff : 16'h8000);
    assign picked16[16*i +: 16] = nan ? (is_bf16 ? NanBf : NanHalf) : second ? b : a;
  end
  assign picked = copy_i ? a_i : is_f16 || is_bf16 ? picked16 : picked32;

  // ---------------------------------------------------------------- The pipeline
  logic [Depth-1:0] valid_q, last_q;
  logic [2:0]       kind_q [Depth];
  logic [63:0]      keep_q [Depth];
  logic [511:0]     pick_q [Depth];
  wire              en = !out_valid_o || out_ready_i;
  wire [511:0]      sum_f32, sum_f16, sum_bf16;

  // The adders of a type stand while none of its sums is on its way through them.
  logic go_f32, go_f16, go_bf16;
  always_comb begin
    go_f32  = in_valid_i && kind == F32;
    go_f16  = in_valid_i && kind == F16;
    go_bf16 = in_valid_i && kind == Bf16;
    for (int unsigned i = 0; i < Depth - 1; i++) begin
      if (valid_q[i] && kind_q[i] == F32)  go_f32  = 1'b1;
      if (valid_q[i] && kind_q[i] == F16)  go_f16  = 1'b1;
      if (valid_q[i] && kind_q[i] == Bf16) go_bf16 = 1'b1;
    end
  end

  assign in_ready_o = en;

  for (genvar i = 0; i < 16; i++) begin : gen_f32
    float_add #(.ExpW(8), .ManW(23)) u_add (
      .clk_i, .en_i(en && go_f32), .a_i(a_i[32*i +: 32]), .b_i(b_i[32*i +: 32]), .sum_o(sum_f32[32*i +: 32])
    );
  end
  for (genvar i = 0; i < 32; i++) begin : gen_half
    float_add #(.ExpW(5), .ManW(10)) u_f16 (
      .clk_i, .en_i(en && go_f16), .a_i(a_i[16*i +: 16]), .b_i(b_i[16*i +: 16]), .sum_o(sum_f16[16*i +: 16])
    );
    float_add #(.ExpW(8), .ManW(7)) u_bf16 (
      .clk_i, .en_i(en && go_bf16), .a_i(a_i[16*i +: 16]), .b_i(b_i[16*i +: 16]), .sum_o(sum_bf16[16*i +: 16])
    );
  end

  always_ff @(posedge clk_i) begin
    if (en) begin
      valid_q   <= {valid_q[Depth-2:0], in_valid_i};
      last_q    <= {last_q[Depth-2:0], last_i};
      kind_q[0] <= kind;
      keep_q[0] <= keep_i;
      pick_q[0] <= picked;
      for (int unsigned i = 1; i < Depth; i++) begin
        kind_q[i] <= kind_q[i-1];
        keep_q[i] <= keep_q[i-1];
        pick_q[i] <= pick_q[i-1];
      end
      out_valid_o <= valid_q[Depth-1];
      out_last_o  <= last_q[Depth-1];
      out_keep_o  <= keep_q[Depth-1];
      out_error_o <= kind_q[Depth-1] == Bad;
      case (kind_q[Depth-1])
        F32:     out_o <= sum_f32;
        F16:     out_o <= sum_f16;
        Bf16:    out_o <= sum_bf16;
        Pick:    out_o <= pick_q[Depth-1];
        default: out_o <= '0;
      endcase
    end
    if (!rst_ni) begin
      valid_q     <= '0;
      out_valid_o <= 1'b0;
    end
  end
endmodule
