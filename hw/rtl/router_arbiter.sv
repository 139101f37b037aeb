// Which of N queues an output of a router takes from next: in turn, up to R packets from one while it has more (the polling parameter R of SMI's
// communication kernels, SC'19 §4.3). With skip_i a queue without a packet costs nothing; without it a look at each costs a cycle, as in SMI.
//
// A queue that has a packet for the output waits while at most (N - 1) * R others leave; without skip_i, in as many cycles in which the output is ready.
module router_arbiter #(
  parameter int unsigned N = 5
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  // R; 0 counts as 1. It stays as it is while packets wait.
  input  logic [7:0]   poll_i,
  input  logic         skip_i,

  // Queues whose first packet may leave, the one that leaves, and whether the output takes it.
  input  logic [N-1:0] request_i,
  output logic [N-1:0] pick_o,
  input  logic         ready_i
);
  localparam int unsigned AtW = $clog2(N);

  logic [AtW-1:0] turn_q;   // the queue that was taken from last, or is looked at
  logic [7:0]     taken_q;  // how often it was
  wire  [7:0]     most = poll_i == '0 ? 8'd1 : poll_i;
  wire  [N-1:0]   at   = N'(1) << turn_q;
  wire            stay = (request_i & at) != '0 && taken_q < most;

  // The next behind it that has a packet, else the first of all.
  wire  [N-1:0]   behind = request_i & ~(at | (at - N'(1)));
  wire  [N-1:0]   rest   = behind != '0 ? behind : request_i;
  wire  [N-1:0]   next   = rest & (~rest + N'(1));
  logic [AtW-1:0] next_at;
  always_comb begin
    next_at = '0;
    for (int unsigned i = 0; i < N; i++) if (next[i]) next_at = AtW'(i);
  end

  assign pick_o = stay ? at : skip_i ? next : '0;

  always_ff @(posedge clk_i) begin
    if (skip_i) begin
      if (ready_i && stay) taken_q <= taken_q + 8'd1;
      else if (ready_i && request_i != '0) {turn_q, taken_q} <= {next_at, 8'd1};
    end else if (ready_i && stay && taken_q + 8'd1 < most) begin
      taken_q <= taken_q + 8'd1;
    end else if (ready_i || !stay) begin
      turn_q  <= turn_q == AtW'(N - 1) ? '0 : turn_q + 1'b1;
      taken_q <= '0;
    end
    if (!rst_ni) begin
      turn_q  <= '0;
      taken_q <= '0;
    end
  end

`ifdef FORMAL
  `include "router_arbiter_props.svh"
`endif
endmodule
