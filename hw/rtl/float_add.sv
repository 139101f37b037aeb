// Sum of two IEEE 754 numbers with ExpW bits of exponent and ManW of fraction: round to nearest even, subnormal numbers
// included. A result that is not a number has the canonical bits (positive, quiet, no payload), as in onc-engines::reduce.
//
// Takes a pair in each cycle with en_i; the sum comes five such cycles later.
module float_add #(
  parameter int unsigned ExpW = 8,
  parameter int unsigned ManW = 23,
  localparam int unsigned Bits = 1 + ExpW + ManW
) (
  input  logic            clk_i,
  input  logic            en_i,
  input  logic [Bits-1:0] a_i,
  input  logic [Bits-1:0] b_i,
  output logic [Bits-1:0] sum_o
);
  // Significand with its hidden bit; then guard, round and sticky.
  localparam int unsigned SigW = ManW + 1;
  localparam int unsigned ExtW = SigW + 3;
  localparam logic [ExpW-1:0] ExpMax = '1;
  localparam logic [Bits-1:0] Nan = {1'b0, ExpMax, 1'b1, (ManW-1)'(0)};

  // ---------------------------------------------------------------- 1: order by magnitude
  wire swap = b_i[Bits-2:0] > a_i[Bits-2:0];
  wire [Bits-1:0] big = swap ? b_i : a_i;
  wire [Bits-1:0] little = swap ? a_i : b_i;
  wire [ExpW-1:0] big_field = big[ManW +: ExpW];
  wire [ExpW-1:0] little_field = little[ManW +: ExpW];
  // Subnormal numbers have the exponent of the smallest normal ones.
  wire [ExpW-1:0] big_exp = big_field == '0 ? ExpW'(1) : big_field;
  wire [ExpW-1:0] little_exp = little_field == '0 ? ExpW'(1) : little_field;
  wire big_infinite = big_field == ExpMax && big[ManW-1:0] == '0;
  wire little_infinite = little_field == ExpMax && little[ManW-1:0] == '0;

  logic            sign1_q, minus1_q, nan1_q, infinite1_q;
  logic [ExpW-1:0] exp1_q, apart1_q;
  logic [SigW-1:0] big1_q, little1_q;
  always_ff @(posedge clk_i) if (en_i) begin
    sign1_q     <= big[Bits-1];
    minus1_q    <= big[Bits-1] != little[Bits-1];
    exp1_q      <= big_exp;
    apart1_q    <= big_exp - little_exp;
    big1_q    <= {big_field != '0, big[ManW-1:0]};
    little1_q    <= {little_field != '0, little[ManW-1:0]};
    infinite1_q <= big_field == ExpMax;
    // Not a number is the largest magnitude, so one of the two is `big`.
    nan1_q      <= (big_field == ExpMax && !big_infinite) ||
                   (big_infinite && little_infinite && big[Bits-1] != little[Bits-1]);
  end

  // ---------------------------------------------------------------- 2: align
  wire [2*ExtW-1:0] shifted = {little1_q, 3'b0, ExtW'(0)} >> (32'(apart1_q) > ExtW ? ExtW : 32'(apart1_q));
  logic            sign2_q, minus2_q, nan2_q, infinite2_q;
  logic [ExpW-1:0] exp2_q;
  logic [ExtW-1:0] big2_q, little2_q;
  always_ff @(posedge clk_i) if (en_i) begin
    {sign2_q, minus2_q, nan2_q, infinite2_q} <= {sign1_q, minus1_q, nan1_q, infinite1_q};
    exp2_q   <= exp1_q;
    big2_q <= {big1_q, 3'b0};
    little2_q <= {shifted[2*ExtW-1:ExtW+1], shifted[ExtW] || shifted[ExtW-1:0] != '0};
  end

  // ---------------------------------------------------------------- 3: add
  logic            sign3_q, nan3_q, infinite3_q;
  logic [ExpW-1:0] exp3_q;
  logic [ExtW:0]   sum3_q;
  wire  [ExtW:0]   sum = minus2_q ? {1'b0, big2_q} - {1'b0, little2_q} : {1'b0, big2_q} + {1'b0, little2_q};
  always_ff @(posedge clk_i) if (en_i) begin
    {nan3_q, infinite3_q} <= {nan2_q, infinite2_q};
    // x - x is +0.
    sign3_q <= sign2_q && !(minus2_q && sum == '0);
    exp3_q  <= exp2_q;
    sum3_q  <= sum;
  end

  // ---------------------------------------------------------------- 4: normalise
  logic [31:0] zeros, shift;
  always_comb begin
    zeros = ExtW;
    for (int unsigned i = 0; i < ExtW; i++) if (sum3_q[i]) zeros = ExtW - 1 - i;
    // No further than to the smallest exponent.
    shift = zeros < 32'(exp3_q) ? zeros : 32'(exp3_q) - 1;
  end
  wire [ExtW-1:0] left = sum3_q[ExtW-1:0] << shift;
  logic            sign4_q, nan4_q, infinite4_q;
  logic [ExpW-1:0] exp4_q;
  logic [ExtW-2:0] sig4_q;  // without the hidden bit
  always_ff @(posedge clk_i) if (en_i) begin
    {sign4_q, nan4_q} <= {sign3_q, nan3_q};
    if (sum3_q[ExtW]) begin
      infinite4_q <= infinite3_q || exp3_q == ExpMax - 1'b1;
      exp4_q      <= exp3_q + 1'b1;
      sig4_q      <= {sum3_q[ExtW-1:2], sum3_q[1] || sum3_q[0]};
    end else begin
      infinite4_q <= infinite3_q;
      exp4_q      <= left[ExtW-1] ? exp3_q - ExpW'(shift) : '0;
      sig4_q      <= left[ExtW-2:0];
    end
  end

  // ---------------------------------------------------------------- 5: round to nearest even
  wire up = sig4_q[2] && (sig4_q[1:0] != 2'b00 || sig4_q[3]);
  // A carry out of the fraction raises the exponent, up to infinity.
  wire [Bits-2:0] rounded = {exp4_q, sig4_q[ExtW-2:3]} + (Bits-1)'(up);
  always_ff @(posedge clk_i) if (en_i) begin
    sum_o <= {sign4_q, rounded};
    if (infinite4_q) sum_o <= {sign4_q, ExpMax, ManW'(0)};
    if (nan4_q) sum_o <= Nan;
  end
endmodule
