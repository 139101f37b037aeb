// Register number and rank of a 32-bit item in each cycle, as onc-engines::stream::hll computes them for items of 4 bytes.
//
// Murmur3 = 0: HashKind::Mix, the SDK's default, two 32-bit finalisers. Murmur3 = 1: the paper's (FpgaNIC §A.3), the first half of
// MurmurHash3_x64_128 with seed 0.
module hll_hash #(
  parameter bit Murmur3 = 1'b0
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        valid_i,
  input  logic [31:0] item_i,
  output logic        valid_o,
  output logic [15:0] slot_o,
  output logic [5:0]  rank_o
);
  localparam int unsigned Mul = 5;  // cycles of mul_const
  // With the registers of the result; Mix: two products. Murmur3: four products and two sums.
  localparam int unsigned Depth = Murmur3 ? 4 * Mul + 3 : 2 * Mul + 2;

  logic [Depth-1:0] valid_q;
  always_ff @(posedge clk_i) valid_q <= rst_ni ? {valid_q[Depth-2:0], valid_i} : '0;
  assign valid_o = valid_q[Depth-1];

  logic [42:0] ranked;  // the bits whose leading zeros count, from the top
  logic [15:0] slot;
  logic [5:0]  rank;
  always_comb begin
    rank = Murmur3 ? 6'd44 : 6'd33;
    for (int unsigned i = 0; i < 43; i++) if (ranked[i]) rank = 6'(43 - i);
  end
  always_ff @(posedge clk_i) begin
    slot_o <= slot;
    rank_o <= rank;
  end

  if (Murmur3) begin : gen_murmur3
    wire  [63:0] a, b, h1, h2, f1, f2, g1, g2;
    logic [63:0] h1_q, h2_q, sum_q;
    mul_const #(.Factor(64'h87c3_7b91_1142_53d5)) u_a (.clk_i, .rst_ni, .x_i({32'b0, item_i}), .y_o(a));
    mul_const #(.Factor(64'h4cf5_ad43_2745_937f)) u_b (.clk_i, .rst_ni, .x_i({a[32:0], a[63:33]}), .y_o(b));
    // The length 4 goes into both halves, and each half into the other.
    assign h1 = (b ^ 64'd4) + 64'd4;
    assign h2 = (b ^ 64'd4) + 64'd8;
    always_ff @(posedge clk_i) {h1_q, h2_q} <= {h1, h2};
    mul_const #(.Factor(64'hff51_afd7_ed55_8ccd)) u_f1 (.clk_i, .rst_ni, .x_i(h1_q ^ (h1_q >> 33)), .y_o(f1));
    mul_const #(.Factor(64'hff51_afd7_ed55_8ccd)) u_f2 (.clk_i, .rst_ni, .x_i(h2_q ^ (h2_q >> 33)), .y_o(f2));
    mul_const #(.Factor(64'hc4ce_b9fe_1a85_ec53)) u_g1 (.clk_i, .rst_ni, .x_i(f1 ^ (f1 >> 33)), .y_o(g1));
    mul_const #(.Factor(64'hc4ce_b9fe_1a85_ec53)) u_g2 (.clk_i, .rst_ni, .x_i(f2 ^ (f2 >> 33)), .y_o(g2));
    always_ff @(posedge clk_i) sum_q <= (g1 ^ (g1 >> 33)) + (g2 ^ (g2 >> 33));
    assign ranked = sum_q[63:21];
    assign slot   = sum_q[15:0];
    wire unused = ^sum_q[20:16];
  end else begin : gen_mix
    // fmix32 of the item plus an offset that differs for rank and register.
    wire  [63:0] r1, s1, r2, s2;
    logic [31:0] r0_q, s0_q;
    always_ff @(posedge clk_i) begin
      r0_q <= item_i + 32'h9e37_79b9;
      s0_q <= item_i + 32'h7f4a_7c15;
    end
    mul_const #(.Factor(64'h85eb_ca6b)) u_r1 (.clk_i, .rst_ni, .x_i({32'b0, r0_q ^ (r0_q >> 16)}), .y_o(r1));
    mul_const #(.Factor(64'h85eb_ca6b)) u_s1 (.clk_i, .rst_ni, .x_i({32'b0, s0_q ^ (s0_q >> 16)}), .y_o(s1));
    mul_const #(.Factor(64'hc2b2_ae35)) u_r2 (.clk_i, .rst_ni, .x_i({32'b0, r1[31:0] ^ (r1[31:0] >> 13)}), .y_o(r2));
    mul_const #(.Factor(64'hc2b2_ae35)) u_s2 (.clk_i, .rst_ni, .x_i({32'b0, s1[31:0] ^ (s1[31:0] >> 13)}), .y_o(s2));
    assign ranked = {r2[31:0] ^ (r2[31:0] >> 16), 11'b0};
    assign slot   = s2[15:0] ^ s2[31:16];
    wire unused = ^{r1[63:32], s1[63:32], r2[63:32], s2[63:32]};
  end
endmodule
