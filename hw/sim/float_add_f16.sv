// 32 adders of f16, for the exhaustive simulation: one first operand, a line of second ones, a line of sums five cycles later.
module float_add_f16 (
  input  logic         clk_i,
  input  logic [15:0]  a_i,
  input  logic [511:0] b_i,
  output logic [511:0] sum_o
);
  for (genvar i = 0; i < 32; i++) begin : gen_lane
    float_add #(.ExpW(5), .ManW(10)) u_add (
      .clk_i, .en_i(1'b1), .a_i, .b_i(b_i[16*i +: 16]), .sum_o(sum_o[16*i +: 16])
    );
  end
endmodule
