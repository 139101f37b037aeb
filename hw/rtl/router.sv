// A router between wires and its node, as SMI's boards have one (SC'19 §4): packets of 32 bytes, one a cycle on each wire at the same time. Its parts: an end of
// each wire (`router_link`), a queue for each channel of each input (`fifo`), a table by destination, and the crossbar (`router_switch`).
//
// A packet begins with its source and its destination, a byte each, as in SMI; the router reads nothing else of it. Its node chooses the channel, and the
// packet keeps it. It passes at most hops_i other nodes. One without a way, or whose hops are used up, is dropped and counted.
// Tables and channels come from the crate `ringbell-routes`, which proves that packets cannot stop for ever. A new entry counts for packets that come after it.
//
// What is under way on a wire that goes down is lost, and is left to the ends. What stands in queues goes on when it is up again.
module router #(
  parameter int unsigned Wires    = 4,
  parameter int unsigned Channels = 1,
  // Slots of each queue, a power of two: a round trip's, for a packet a cycle in one channel.
  parameter int unsigned Depth    = 32,
  // As in `router_link`.
  parameter int unsigned Window   = 64,
  parameter int unsigned Again    = 512,
  parameter int unsigned Quiet    = 256,
  parameter int unsigned Silence  = 4096,
  localparam int unsigned Bits    = 256,
  localparam int unsigned Word    = Bits + 64,
  localparam int unsigned Inputs  = Wires + 1,
  localparam int unsigned Queues  = Inputs * Channels
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  // The table: a destination's way is a wire, the node (Wires), or nowhere (15), which is every entry's after reset.
  input  logic                    route_valid_i,
  output logic                    route_ready_o,
  input  logic [7:0]              route_destination_i,
  input  logic [3:0]              route_way_i,
  // Settings; both ends of a wire must have the same digest.
  input  logic [31:0]             digest_i,
  input  logic [7:0]              hops_i,
  // As in `router_switch`.
  input  logic [7:0]              poll_i,
  input  logic                    skip_i,
  input  logic [Wires*Queues-1:0] entering_i,

  input  logic [Wires-1:0]        wire_valid_i,
  input  logic [Wires*Word-1:0]   wire_i,
  output logic [Wires*Word-1:0]   wire_o,
  input  logic [Wires-1:0]        wire_ready_i,

  // The node's packets, in and out.
  input  logic                    in_valid_i,
  output logic                    in_ready_o,
  input  logic [3:0]              in_channel_i,
  input  logic [Bits-1:0]         in_i,
  output logic                    out_valid_o,
  input  logic                    out_ready_i,
  output logic [3:0]              out_channel_o,
  output logic [Bits-1:0]         out_o,

  // Wires that are up; those whose other end has other rules; and since the reset: times that wires went down, times that packets were sent again, and
  // packets that were dropped.
  output logic [Wires-1:0]        up_o,
  output logic [Wires-1:0]        refused_o,
  output logic [31:0]             resets_o,
  output logic [31:0]             again_o,
  output logic [31:0]             dropped_o
);
  localparam int unsigned Width = Bits + 8;
  localparam logic [3:0] Here = 4'(Wires), Nowhere = 4'd15;

  // ---------------------------------------------------------------- The table; its entries lead nowhere after a reset
  logic [3:0] way_q [256];
  logic [8:0] sweep_q;
  wire        swept = sweep_q[8];
  assign route_ready_o = swept;
  always_ff @(posedge clk_i) begin
    if (!swept) begin
      way_q[sweep_q[7:0]] <= Nowhere;
      sweep_q <= sweep_q + 9'd1;
    end else if (route_valid_i) begin
      way_q[route_destination_i] <= route_way_i;
    end
    if (!rst_ni) sweep_q <= '0;
  end

`ifdef FORMAL
  logic [12*Channels*Wires-1:0] f_stand;
  logic [8*Queues-1:0]          f_held;
`endif

  // ---------------------------------------------------------------- Wires
  logic [Inputs*Width-1:0]     came;
  logic [Queues-1:0]           came_valid, taken;
  logic [Wires*Channels-1:0]   free, free_two;
  logic [Wires:0]              leaves_valid, leaves_ready;
  logic [4*Inputs-1:0]         leaves_channel;
  logic [Inputs*Width-1:0]     leaves;
  logic [Wires-1:0]            down, again;
  for (genvar w = 0; w < Wires; w++) begin : gen_wire
    router_link #(.Bytes(Bits / 8), .Channels(Channels), .Depth(Depth), .Window(Window), .Again(Again), .Quiet(Quiet), .Silence(Silence)
`ifdef FORMAL
      , .Alone(1'b0)
`endif
    ) i_link (
      .clk_i, .rst_ni(rst_ni && swept), .digest_i, .up_o(up_o[w]), .refused_o(refused_o[w]), .down_o(down[w]), .again_o(again[w]),
      .wire_valid_i(wire_valid_i[w]), .wire_i(wire_i[Word*w +: Word]), .wire_o(wire_o[Word*w +: Word]), .wire_ready_i(wire_ready_i[w]),
      .free_o(free[Channels*w +: Channels]), .free_two_o(free_two[Channels*w +: Channels]), .tx_valid_i(leaves_valid[w]), .tx_ready_o(leaves_ready[w]),
      .tx_channel_i(leaves_channel[4*w +: 4]), .tx_i(leaves[Width*w +: Width]), .rx_valid_o(came_valid[Channels*w +: Channels]),
      .rx_o(came[Width*w +: Width]), .rx_release_i(taken[Channels*w +: Channels])
`ifdef FORMAL
      , .f_stand_o(f_stand[12*Channels*w +: 12*Channels])
`endif
      );
  end

  // ---------------------------------------------------------------- Inputs: the way of a packet, then its queue
  logic [Queues-1:0]       first_valid, room;
  logic [4*Queues-1:0]     first_way;
  logic [Queues*Width-1:0] first;
  logic                    in_room;
  assign came[Width*Wires +: Width] = {hops_i, in_i};
  assign in_ready_o = swept && in_room;
  always_comb begin
    in_room = 1'b0;
    for (int unsigned c = 0; c < Channels; c++) begin
      came_valid[Channels*Wires+c] = swept && in_valid_i && in_channel_i == 4'(c);
      if (in_channel_i == 4'(c)) in_room = room[Channels*Wires+c];
    end
  end
  for (genvar i = 0; i < Inputs; i++) begin : gen_input
    wire [7:0] hops = came[Width*i+Bits +: 8];
    wire [3:0] way  = way_q[came[Width*i+8 +: 8]];
    // A packet from a wire that goes on to another one has passed this node.
    wire       passes = i < Wires && way < Here;
    wire [3:0] goes   = way > Here || (passes && hops == '0) ? Nowhere : way;
    for (genvar c = 0; c < Channels; c++) begin : gen_queue
      localparam int unsigned Q = Channels * i + c;
      // A wire's packets always have room: the other end has credit for no others.
      fifo #(.Width(Width + 4), .Depth(Depth)) i_queue (
        .clk_i, .rst_ni, .in_valid_i(came_valid[Q]), .in_ready_o(room[Q]), .in_i({goes, hops - 8'(passes), came[Width*i +: Bits]}),
        .out_valid_o(first_valid[Q]), .out_ready_i(taken[Q]), .out_o({first_way[4*Q +: 4], first[Width*Q +: Width]})
`ifdef FORMAL
        , .f_held_o(f_held[8*Q +: 8])
`endif
        );
    end
  end
  wire unused_room = ^room;

  // ---------------------------------------------------------------- Outputs
  logic [Queues-1:0] drops;
  router_switch #(.Width(Width), .Wires(Wires), .Channels(Channels)) i_switch (
    .clk_i, .rst_ni, .poll_i, .skip_i, .entering_i, .in_valid_i(first_valid), .in_way_i(first_way), .in_i(first), .in_taken_o(taken), .dropped_o(drops),
    .free_i(free), .free_two_i(free_two), .out_valid_o(leaves_valid), .out_ready_i(leaves_ready), .out_channel_o(leaves_channel), .out_o(leaves));

  // What is offered to the node stays until it is taken.
  wire [7:0] unused_hops = leaves[Width*Wires+Bits +: 8];
  assign leaves_ready[Wires] = !out_valid_o || out_ready_i;
  always_ff @(posedge clk_i) begin
    if (leaves_ready[Wires]) begin
      out_valid_o   <= leaves_valid[Wires];
      out_channel_o <= leaves_channel[4*Wires +: 4];
      out_o         <= leaves[Width*Wires +: Bits];
    end
    resets_o  <= resets_o + 32'($countones(down));
    again_o   <= again_o + 32'($countones(again));
    dropped_o <= dropped_o + 32'($countones(drops));
    if (!rst_ni) begin
      out_valid_o <= 1'b0;
      resets_o    <= '0;
      again_o     <= '0;
      dropped_o   <= '0;
    end
  end

`ifdef FORMAL
  `include "router_props.svh"
`endif
endmodule
