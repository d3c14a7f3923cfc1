"""Ports that are chosen for what is about to be started."""

from __future__ import annotations

import socket

import pytest

from extproc.stand.ports import free_port, free_ports, probe


def test_ports_chosen_together_differ_and_are_not_taken_by_connections_that_go_out() -> None:
    ports = free_ports(200)

    assert len(set(ports)) == 200
    assert all(20_000 <= port < 32_768 for port in ports)


def test_a_port_that_is_listened_on_is_not_chosen_and_said_to_be_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen()
        taken = other.getsockname()[1]

        assert taken not in free_ports(12_000)
        with pytest.raises(OSError, match="in use"):
            probe(taken)
