// The sending side of a wire: packets with numbers until the other end has confirmed them, all of these again when it misses one or stays silent
// (go-back-N), and the credit of each channel. The arithmetic is that of `Sending` in the crate `ringbell-mesh`, modulo 2^12.
//
// The packet with number n on the wire is the n-th one taken since the wire came up; no channel has more packets on the way than the other end
// has slots. It takes a packet a cycle.
module router_link_tx #(
  parameter int unsigned Width    = 264,
  parameter int unsigned Channels = 2,
  // Slots of a channel at the other end.
  parameter int unsigned Depth    = 8,
  // Packets on their way, a power of two: at least those of a round trip.
  parameter int unsigned Window   = 64,
  // Cycles without a confirmation until packets are sent again: more than a round trip.
  parameter int unsigned Again    = 512
`ifdef FORMAL
  // The proof's own: the other end is an end, too.
  , parameter bit Alone = 1'b1
`endif
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  // A cycle in which the wire is not up begins anew: what is not confirmed is lost.
  input  logic                up_i,

  // Channels with one free slot at the other end, and with two.
  output logic [Channels-1:0] free_o,
  output logic [Channels-1:0] free_two_o,
  // A packet of a channel with a free slot.
  input  logic                in_valid_i,
  output logic                in_ready_o,
  input  logic [3:0]          in_channel_i,
  input  logic [Width-1:0]    in_i,

  // What a word of the other end tells.
  input  logic                told_i,
  input  logic [11:0]         ack_i,
  input  logic                miss_i,
  input  logic [3:0]          limit_channel_i,
  input  logic [11:0]         limit_i,
  // It tells what cannot be.
  output logic                broken_o,

  // The next word for the wire; it is made in a cycle with step_i.
  input  logic                step_i,
  output logic                packet_o,
  output logic [3:0]          channel_o,
  output logic [11:0]         number_o,
  output logic [Width-1:0]    out_o,
  // Packets are sent again.
  output logic                again_o
`ifdef FORMAL
  , input  logic [11:0]            f_which_i,
  input  logic [11:0]            f_expected_i,
  output logic [11:0]            f_next_o, f_base_o, f_send_o,
  output logic [Width+3:0]       f_held_o,
  output logic [4*Window-1:0]    f_channels_o,
  output logic [12*Channels-1:0] f_limits_o, f_credits_o, f_coming_o
`endif
);
  localparam int unsigned AtW     = $clog2(Window);
  localparam int unsigned CreditW = $clog2(Depth + 1);
  localparam int unsigned TimerW  = $clog2(Again + 1);

  // ---------------------------------------------------------------- Numbers
  logic [Width+3:0]  mem_q [Window];
  logic [11:0]       next_q, base_q, send_q;  // to be given, not confirmed, to be put on the wire
  logic [TimerW-1:0] timer_q;
  wire  [11:0]       held      = next_q - base_q;
  wire               all_sent  = send_q == next_q;
  wire               take      = in_valid_i && in_ready_o;
  wire               resend    = step_i && !all_sent;
  wire  [11:0]       sent      = send_q + 12'(take || resend);
  wire  [11:0]       base      = told_i ? ack_i : base_q;
  wire  [11:0]       confirmed = base - base_q;
  wire               late      = timer_q == TimerW'(Again);

  assign in_ready_o = up_i && step_i && all_sent && held != 12'(Window);
  assign again_o    = up_i && ((told_i && miss_i) || late);

  always_ff @(posedge clk_i) begin
    if (take) mem_q[next_q[AtW-1:0]] <= {in_channel_i, in_i};
    if (step_i) begin
      packet_o           <= up_i && (take || resend);
      number_o           <= send_q;
      {channel_o, out_o} <= all_sent ? {in_channel_i, in_i} : mem_q[send_q[AtW-1:0]];
    end
    next_q <= next_q + 12'(take);
    base_q <= base;
    // What is confirmed is not sent again.
    send_q <= again_o || sent - base_q < confirmed ? base : sent;
    timer_q <= held == '0 || confirmed != '0 || again_o ? '0 : timer_q + 1'b1;
    if (!up_i || !rst_ni) begin
      next_q  <= '0;
      base_q  <= '0;
      send_q  <= '0;
      timer_q <= '0;
    end
    if (!rst_ni) packet_o <= 1'b0;
  end

  // ---------------------------------------------------------------- Credit
  logic [11:0]        limit_q  [Channels];
  logic [CreditW-1:0] credit_q [Channels];
  logic [Channels-1:0] over;
  for (genvar c = 0; c < Channels; c++) begin : gen_credit
    wire        told  = told_i && limit_channel_i == 4'(c);
    wire [11:0] more  = told ? limit_i - limit_q[c] : '0;
    wire        used  = take && in_channel_i == 4'(c);
    wire [12:0] total = 13'(credit_q[c]) + 13'(more);
    assign over[c]       = total > 13'(Depth);
    assign free_o[c]     = credit_q[c] != '0;
    assign free_two_o[c] = credit_q[c] > CreditW'(1);
    always_ff @(posedge clk_i) begin
      limit_q[c]  <= limit_q[c] + more;
      credit_q[c] <= CreditW'(total - 13'(used));
      if (!up_i || !rst_ni) begin
        limit_q[c]  <= '0;
        credit_q[c] <= '0;
      end
    end
  end
  assign broken_o = up_i && told_i && (ack_i - base_q > held || over != '0 || 32'(limit_channel_i) >= Channels);

`ifdef FORMAL
  `include "router_link_tx_props.svh"
`endif
endmodule
