// The receiving side of a wire: packets in the order of their numbers, each once; what the other end is to be told of them; and the slots of each
// channel. The arithmetic is that of `Receiving` in the crate `ringbell-mesh`, modulo 2^12.
//
// No channel gets more packets than it has slots, also from a neighbour that breaks the rules.
module router_link_rx #(
  parameter int unsigned Width    = 264,
  parameter int unsigned Channels = 2,
  // Slots of a channel.
  parameter int unsigned Depth    = 8,
  // Packets on their way at most.
  parameter int unsigned Window   = 64
`ifdef FORMAL
  // Proved alone, this block takes for granted that only slots in use are released.
  , parameter bit Alone = 1'b1
`endif
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  // A cycle in which the wire is not up begins anew. Packets that stand here keep their slots.
  input  logic                up_i,

  // A packet on the wire.
  input  logic                packet_i,
  input  logic [3:0]          channel_i,
  input  logic [11:0]         number_i,
  input  logic [Width-1:0]    in_i,
  // It is none that the other end may send.
  output logic                broken_o,

  // It goes into a slot of this channel. A slot is free again in the cycle after.
  output logic [Channels-1:0] out_valid_o,
  output logic [Width-1:0]    out_o,
  input  logic [Channels-1:0] release_i,

  // What the next word tells; it is made in a cycle with step_i.
  input  logic                step_i,
  output logic [11:0]         ack_o,
  output logic                miss_o,
  output logic [3:0]          limit_channel_o,
  output logic [11:0]         limit_o
`ifdef FORMAL
  , output logic [12*Channels-1:0] f_received_o, f_limits_o, f_stand_o
`endif
);
  logic [11:0]         expected_q;
  logic                missing_q;  // a later packet than the expected one has come
  logic                tell_q;     // and the other end is to be told
  logic [3:0]          tell_at_q;
  logic [11:0]         received_q [Channels], limit_q [Channels];
  logic [Channels-1:0] room, chosen;

  wire [11:0] ahead = number_i - expected_q;
  wire        later = packet_i && ahead != '0 && ahead < 12'(Window);
  // One that was sent again though it had come.
  wire        older = 12'd0 - ahead <= 12'(Window);

  assign out_o           = in_i;
  assign out_valid_o     = up_i && packet_i && ahead == '0 ? chosen & room : '0;
  assign broken_o        = up_i && packet_i && (chosen == '0 || !(later || older) || (ahead == '0 && (chosen & room) == '0));
  assign ack_o           = expected_q;
  assign miss_o          = tell_q;
  assign limit_channel_o = tell_at_q;

  always_comb begin
    limit_o = '0;
    for (int unsigned c = 0; c < Channels; c++) begin
      chosen[c] = channel_i == 4'(c);
      room[c]   = limit_q[c] != received_q[c];
      if (tell_at_q == 4'(c)) limit_o = limit_q[c];
    end
  end

  always_ff @(posedge clk_i) begin
    if (step_i) begin
      tell_q    <= 1'b0;
      tell_at_q <= tell_at_q == 4'(Channels - 1) ? '0 : tell_at_q + 4'd1;
    end
    // Once for each number: those behind the gap say nothing new.
    if (later) begin
      missing_q <= 1'b1;
      if (!missing_q) tell_q <= 1'b1;
    end
    if (out_valid_o != '0) begin
      expected_q <= expected_q + 12'd1;
      missing_q  <= 1'b0;
    end
    for (int unsigned c = 0; c < Channels; c++) begin
      received_q[c] <= received_q[c] + 12'(out_valid_o[c]);
      limit_q[c]    <= limit_q[c] + 12'(release_i[c]);
      if (!up_i) begin
        received_q[c] <= '0;
        limit_q[c]    <= limit_q[c] - received_q[c] + 12'(release_i[c]);
      end
      if (!rst_ni) begin
        received_q[c] <= '0;
        limit_q[c]    <= 12'(Depth);
      end
    end
    if (!up_i || !rst_ni) begin
      expected_q <= '0;
      missing_q  <= 1'b0;
      tell_q     <= 1'b0;
    end
    if (!rst_ni) tell_at_q <= '0;
  end

`ifdef FORMAL
  `include "router_link_rx_props.svh"
`endif
endmodule
