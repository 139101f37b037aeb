// The low 64 bits of a number times a constant, five cycles later, as a pipeline of products that a DSP block can take (26 by 17
// bits). Unused bits cost nothing: of 32 bits, two products and some look-up tables remain.
module mul_const #(
  parameter logic [63:0] Factor = 64'd1
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [63:0] x_i,
  output logic [63:0] y_o
);
  // x in parts of 26 bits, the constant in parts of 17.
  localparam logic [16:0] C0 = Factor[16:0];
  localparam logic [16:0] C1 = Factor[33:17];
  localparam logic [16:0] C2 = Factor[50:34];
  localparam logic [12:0] C3 = Factor[63:51];

  logic [63:0] x_q;
  logic [42:0] p00_q, p01_q;
  logic [37:0] p10_q;
  logic [29:0] p02_q;
  logic [20:0] p11_q;
  logic [12:0] p03_q;
  logic [11:0] p20_q;
  logic [3:0]  p12_q;
  logic [63:0] low_q, sum_q;
  logic [37:0] middle_q;
  logic [12:0] high_q, high3_q;
  always_ff @(posedge clk_i) begin
    x_q   <= x_i;
    // Each product begins at the sum of its parts' places, and ends at bit 63.
    p00_q <= 43'(x_q[25:0]) * 43'(C0);
    p01_q <= 43'(x_q[25:0]) * 43'(C1);
    p02_q <= 30'(x_q[25:0]) * 30'(C2);
    p03_q <= 13'(x_q[12:0]) * 13'(C3);
    p10_q <= 38'(x_q[51:26]) * 38'(C0);
    p11_q <= 21'(x_q[46:26]) * 21'(C1);
    p12_q <= 4'(x_q[29:26]) * 4'(C2[3:0]);
    p20_q <= 12'(x_q[63:52]) * 12'(C0[11:0]);
    // Of the first four, two and two do not overlap.
    low_q    <= {p11_q, p00_q} + {p12_q, p01_q, 17'b0};
    middle_q <= p10_q + {p02_q, 8'b0};
    high_q   <= p03_q + {p20_q, 1'b0};
    sum_q    <= {low_q[63:26] + middle_q, low_q[25:0]};
    high3_q  <= high_q;
    y_o      <= {sum_q[63:51] + high3_q, sum_q[50:0]};
    // Without a reset tools would make shift registers of the lower bits, in look-up tables, which are scarcer than flip-flops.
    if (!rst_ni) sum_q <= '0;
  end
endmodule
