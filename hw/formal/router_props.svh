// Proof of router, included at its end: its parts keep what each other's proofs assume, whatever comes by the wires, by the table's port and from the node.
//
// What an end of a wire takes has room in its queue, and the slots that the end counts are those of the queue: no packet is lost or doubled between them. A
// wire gets packets in channels with a free slot alone. In each cycle as many packets are taken from queues as leave by outputs or are dropped.
// Each packet of a queue comes out of it once, unchanged and in order (`fifo`), and by the output of its way within the turns of the others (`router_switch`,
// `router_arbiter`): their assertions are kept here. An end of a wire is proved joined to another one (`router_link`).
//
// It assumes, as the arbiters do, that R and skip_i stay as they are.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

// ---------------------------------------------------------------- Slots
for (genvar w = 0; w < Wires; w++) begin : gen_f_wire
  for (genvar c = 0; c < Channels; c++) begin : gen_f_channel
    localparam int unsigned Q = Channels * w + c;
    wire [11:0] stand = f_stand[12*Q +: 12];
    always_comb if (f_started) begin
      assert (stand == 12'(f_held[8*Q +: 8]) && stand <= 12'(Depth));
      if (rst_ni && came_valid[Q]) assert (room[Q]);
      // Nothing stands here while the table is cleared.
      if (!swept) assert (stand == '0 && !up_o[w]);
    end
  end
  always_comb if (f_started && rst_ni && leaves_valid[w]) begin
    assert (32'(leaves_channel[4*w +: 4]) < Channels);
    assert (free[Channels*w + 32'(leaves_channel[4*w +: 4])]);
  end
end

// ---------------------------------------------------------------- All packets
logic [7:0] f_taken, f_left;
always_comb begin
  {f_taken, f_left} = '0;
  for (int q = 0; q < Queues; q++) begin
    f_taken = f_taken + 8'(taken[q]);
    f_left  = f_left + 8'(drops[q]);
  end
  for (int o = 0; o < Inputs; o++) f_left = f_left + 8'(leaves_valid[o] && leaves_ready[o]);
end
always_comb if (f_started && rst_ni) begin
  assert (f_taken == f_left && (taken & ~first_valid) == '0);
  // The node's packet has room in the queue of its channel.
  if (in_valid_i && in_ready_o) assert (32'(in_channel_i) < Channels && came_valid[Channels*Wires+32'(in_channel_i)] && room[Channels*Wires+32'(in_channel_i)]);
end
// What the node takes is offered in the next cycle, and stays until it is taken.
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(leaves_valid[Wires] && leaves_ready[Wires])) assert (out_valid_o && out_o == $past(leaves[Width*Wires +: Bits]));
  if ($past(out_valid_o && !out_ready_i)) assert (out_valid_o && $stable(out_o) && $stable(out_channel_o));
end
