#include "runtime/inquiries.h"

#include <utility>

namespace weft::core {

void Inquiries::Begin(Inquiry& inquiry, std::unique_ptr<WaitGraph> graph) {
  open_.push_back(&inquiry);
  BeginPass(inquiry, std::move(graph));
  Continue(inquiry);
}

void Inquiries::BeginPass(Inquiry& inquiry, std::unique_ptr<WaitGraph> graph) {
  host_.TakeReplies();
  inquiry.graph = std::move(graph);
  inquiry.number = ++last_number_;
  inquiry.open = 0;
}

void Inquiries::Continue(Inquiry& inquiry) {
  for (;;) {
    WaitQuestion question;
    while (inquiry.graph->NextQuestion(&question)) {
      if (question.kind == WaitQuestion::Kind::kShape) {
        ++inquiry.open;
        host_.AskShape(inquiry.number, question.shape);
      } else if (question.object.owner != self_) {
        ++inquiry.open;
        host_.AskWhy(inquiry.number, question.object);
      } else if (question.kind == WaitQuestion::Kind::kProcess) {
        inquiry.graph->Answer(host_.FactOfSelf());
      } else {
        inquiry.graph->Answer(host_.FactOfObject(question.object));
      }
    }
    if (inquiry.open > 0) return;
    inquiry.verdict = inquiry.graph->Judge(inquiry.second ? &inquiry.proof : nullptr);
    if (inquiry.verdict.kind != WaitVerdict::Kind::kStuck || inquiry.second || faults.judge_from_one_pass) {
      return End(inquiry);
    }
    inquiry.second = true;
    inquiry.proof = std::move(inquiry.verdict.proof);
    BeginPass(inquiry, std::make_unique<WaitGraph>(inquiry.graph->Again()));
  }
}

Inquiry* Inquiries::TakeAnswer(uint64_t number) {
  for (Inquiry* inquiry : open_) {
    if (inquiry->number != number || inquiry->open == 0) continue;
    --inquiry->open;
    return inquiry;
  }
  return nullptr;
}

void Inquiries::WhyAnswered(uint64_t number, ObjectId subject, std::string_view bytes) {
  Inquiry* inquiry = TakeAnswer(number);
  if (inquiry == nullptr) return;
  if (subject.index == 0) {
    ProcessFact fact;
    if (DecodeFact(bytes, fact) && fact.process == subject.owner) inquiry->graph->Answer(std::move(fact));
  } else {
    ObjectFact fact;
    if (DecodeFact(bytes, fact) && fact.id == subject) inquiry->graph->Answer(std::move(fact));
  }
  Continue(*inquiry);
}

void Inquiries::ShapeAnswered(uint64_t number, std::string_view bytes) {
  Inquiry* inquiry = TakeAnswer(number);
  if (inquiry == nullptr) return;
  ShapeFact fact;
  if (DecodeFact(bytes, fact)) inquiry->graph->Answer(std::move(fact));
  Continue(*inquiry);
}

void Inquiries::AbandonAll() {
  for (Inquiry* inquiry : std::exchange(open_, {})) {
    inquiry->graph->Judge(nullptr);  // for its words
    inquiry->verdict = WaitVerdict();
    End(*inquiry);
  }
}

void Inquiries::Forget(Inquiry& inquiry) { std::erase(open_, &inquiry); }

void Inquiries::End(Inquiry& inquiry) {
  Forget(inquiry);
  inquiry.done = true;
  host_.InquiryEnded(inquiry);  // the last that is done with it
}

}  // namespace weft::core
