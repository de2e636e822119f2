# SPDX-License-Identifier: MIT
"""
test_cxxnames.py - C++ names as tables and stacks show them.

Not here: where they are shown (test_advise.py, test_report.py).
"""

import types

import pytest
import toolkit  # noqa: F401  (puts the tool into the path)

import advise.advice as advice
import cxxnames
import render

STRING = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
PAIR = "std::pair<std::string const, std::vector<int, std::allocator<int> > >"


@pytest.mark.parametrize(
    "whole, tidy",
    [
        (f"Book::add(int, {STRING} const&)", "Book::add(int, std::string const&)"),
        ("std::vector<A<long>, std::allocator<A<long> > >::grow()", "std::vector<A<long>>::grow()"),
        (f"std::map<int, int, std::less<int>, std::allocator<{PAIR} > >::clear()", "std::map<int, int>::clear()"),
        ("f(A<int, std::hash<int>, B>)", "f(A<int, B>)"),
        ("f(int, std::hash<int> const&, std::less<int>, long)", "f(int, std::hash<int> const&, std::less<int>, long)"),
        (f"{STRING}::basic_string<std::allocator<char> >(char const&, std::allocator<char> const&)",
         "std::string::basic_string<std::allocator<char>>(char const&, std::allocator<char> const&)"),
        ("A<int, std::hash<int> const&>", "A<int, std::hash<int> const&>"),
        ("x, std::less<int", "x"),
        ("a < b", "a < b"),
        ("jq+0x1234", "jq+0x1234"),
    ],
)
def test_template_arguments_nobody_writes_are_left_out(whole, tidy):
    assert cxxnames.tidy(whole) == tidy


@pytest.mark.parametrize(
    "whole, brief",
    [
        (f"Book::add(int, {STRING} const&)", "Book::add"),
        (f"void {STRING}::_M_construct<char*>(char*, char*, std::forward_iterator_tag)", "std::string::_M_construct<char*>"),
        ("std::thread& std::vector<std::thread>::emplace_back<void (&)(int), int>(int&&)", "std::vector<std::thread>::emplace_back<…>"),
        ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()"),
        ("(anonymous namespace)::parse(char const*)", "(anonymous namespace)::parse"),
        ("std::ostream& operator<< <int>(std::ostream&, int)", "operator<< <int>"),
        ("Iter::operator->() const", "Iter::operator->"),
        ("Big::operator unsigned long() const", "Big::operator unsigned long"),
        ("operator new(unsigned long)", "operator new"),
        ("decltype(auto) make<int>(int)", "make<int>"),
        ("parse(int) [clone .cold]", "parse"),
    ],
)
def test_a_brief_name_has_neither_result_nor_arguments(whole, brief):
    assert cxxnames.brief(whole) == brief


@pytest.mark.parametrize(
    "name", ["main", "libxml2.so.2+0x1316be", "<T as core::Trait>::make", "a<b", "", "(", "f>>(", "x)", "\x01" + "0\x02", "(x)"]
)
def test_what_is_no_cxx_function_comes_back_as_it_is(name):
    assert cxxnames.brief(name) == name


def test_a_name_that_holds_our_own_mark_stays_as_it_is():
    name = "f\x019\x02(int)"
    assert cxxnames.brief(name) == name


def test_slabs_and_arenas_name_an_operator_whole():
    sites = [advice.Site(n, name, "", [], "slab", 0, 0, 9, 9, 1, 18, 0) for n, name in enumerate(("adder::operator()(int) const", "make_point", "make_point"))]
    mix = types.SimpleNamespace(serves=lambda klass: True)
    slab = {"slab": 0, "objects": 27, "element_bytes": 16, "peak_live": 1}
    assert render.slabs_text({"slabs": [slab], "allocs": 27}, sites, mix)[0].startswith("  slab 0: adder::operator(), make_point; ")
    arena = {"arena": 0, "objects": 27, "peak_bytes": 9, "generations": 1, "instances": 1}
    assert render.arenas_text({"arenas": [arena], "allocs": 27, "peak_live_bytes": 9}, sites)[0].startswith("  arena 0: adder::operator(), make_point; ")
